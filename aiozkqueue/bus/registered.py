"""Lists buses and their groups, for operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.errors import NotFoundError, PayloadError
from aiozkqueue.layout.buses import BusPaths, BusRecord, buses_base
from aiozkqueue.layout.errors import MalformedError
from aiozkqueue.runtime.acl_errors import right_denied
from aiozkqueue.session.internals import core_of
from aiozkqueue.zookeeper import NoAuthError, NoNodeError, below, read_latest, reads

if TYPE_CHECKING:
    from aiozkqueue.session.session import QueueSession
    from aiozkqueue.zookeeper import CallLimit


class Buses:
    """The buses below a session's root: ``Buses(session)``. Reading creates nothing."""

    def __init__(self, session: QueueSession) -> None:
        self._runtime = core_of(session)

    @property
    def _limit(self) -> CallLimit:
        """The limit of one call, which `reads` and `changes` apply."""
        return self._runtime.limit("buses")

    @reads
    async def list(self) -> list[str]:
        """Read the names of all buses that have been posted to or joined.

        Raises: AccessDeniedError, ConnectionLostError, SessionClosedError, WrongLoopError.
        """
        self._runtime.check()
        base = buses_base(self._runtime.root)
        try:
            return sorted(await below(self._runtime.zookeeper, base))
        except NoAuthError as error:
            raise right_denied("buses", f"read {base}", error) from error

    @reads
    async def queues(self, bus: str) -> dict[str | None, str]:
        """Read the queue of the bus itself, under None, and that of each group, in the order they joined.

        Raises: NotFoundError, InvalidNameError, AccessDeniedError, PayloadError, ConnectionLostError,
        SessionClosedError, WrongLoopError.
        """
        self._runtime.check()
        paths = BusPaths(self._runtime.root, bus)
        try:
            node = await read_latest(self._runtime.zookeeper, paths.base)
            groups = BusRecord.decode(node.data).groups
        except NoNodeError as error:
            msg = f"there is no bus {bus!r}: nothing has been posted to it, and no group has joined"
            raise NotFoundError(msg) from error
        except NoAuthError as error:
            raise right_denied(f"bus {bus!r}", f"read {paths.base}", error) from error
        except MalformedError as error:
            msg = f"{paths.base}: {error}"
            raise PayloadError(msg) from error
        return {group: paths.queue(group) for group in (None, *groups)}
