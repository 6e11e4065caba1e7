"""The subscriber groups of a bus, and the check in every post that they are still the ones known."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import anyio

from aiozkqueue.errors import ConflictError, NotCommittedError, NotFoundError, PayloadError, QueueError
from aiozkqueue.layout import name_at
from aiozkqueue.layout.buses import BusPaths, BusRecord
from aiozkqueue.layout.errors import MalformedError
from aiozkqueue.queue.commit.register import FixedOperations
from aiozkqueue.queue.commit.write import OPERATION_WEIGHT, AtomicWrite, Part
from aiozkqueue.runtime.acl_errors import right_denied
from aiozkqueue.zookeeper import (
    BadVersionError,
    Check,
    NoAuthError,
    NoNodeError,
    SetData,
    ZooKeeperError,
    parent_of,
    read_latest,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

    from aiozkqueue.queue.commit.write import Composition
    from aiozkqueue.session.core import SessionCore
    from aiozkqueue.zookeeper import Operation

log: Final = logging.getLogger(__name__)

#: Refusals of a change after which it is given up, if each read in between has shown the same data.
MOST_REFUSALS: Final = 3
#: The error then, after its subject.
UNCHANGED: Final = "is said to have changed, although each read shows the same version"


class GroupsChangedError(ConflictError):
    """A group joined or left the bus while an event was posted; nothing was committed; repeating it is safe."""


class Groups:
    """A session's view of a bus's groups."""

    def __init__(self, runtime: SessionCore, paths: BusPaths) -> None:
        self._runtime = runtime
        self._paths = paths
        self._record = BusRecord()
        self._version = -1
        self._modified = 0  # the zxid of the record that was read
        self._known = False

    async def known(self) -> tuple[tuple[str, ...], GroupsCheck]:
        """Return the groups, and the check to send with an event for them.

        Raises: AccessDeniedError, PayloadError; NotCommittedError: the bus is not found, although it was created.
        """
        tries = 0
        while not self._known and not await self._read():
            if (tries := tries + 1) > MOST_REFUSALS:
                raise self.inconsistent("is not found, although it was created")
            await self._create()
        return self._record.groups, GroupsCheck(self._paths.base, self._version, self.forget, self._modified)

    async def stored(self) -> tuple[str, ...]:
        """Read the groups as they are now, without creating anything. Raises: AccessDeniedError, PayloadError."""
        self.forget()
        return self._record.groups if await self._read() else ()

    def forget(self) -> None:
        """Record that the groups have changed."""
        self._known = False

    def inconsistent(self, what: str) -> NotCommittedError:
        """Return the error for servers whose answers contradict each other."""
        base = self._paths.base
        return NotCommittedError(f"{base} {what}; nothing was committed; compare this znode on all ZooKeeper servers")

    async def are_still(self, check: GroupsCheck) -> bool:
        """Read the groups, and return whether they are those of a check. Raises: AccessDeniedError, PayloadError."""
        self.forget()
        _, latest = await self.known()
        return latest.modified == check.modified

    @asynccontextmanager
    async def unchanged(self, check: GroupsCheck) -> AsyncIterator[None]:
        """Run the body, and cancel it as soon as the groups are no longer those of a check.

        Raises: GroupsChangedError: they have changed; AccessDeniedError, PayloadError.
        """
        with anyio.CancelScope() as scope:
            watch = await self._runtime.zookeeper.watch(self._paths.base, lambda _: scope.cancel())
            try:
                if await self.are_still(check):  # they may have changed before the watch was set
                    yield
                    return
            finally:
                watch.cancel()
        self.forget()
        msg = f"{self._paths.base}: a group joined or left the bus while an event waited for capacity; repeat it"
        raise GroupsChangedError(msg)

    async def warn_unless_joined(self, group: str) -> None:
        """Log a warning if the group has not joined. Errors are not reported: the group's listener gets them too."""
        zookeeper, joined = self._runtime.zookeeper, BusRecord()
        with suppress(ZooKeeperError, MalformedError):
            await zookeeper.sync(self._paths.base)  # another session may have just joined the group
            with suppress(NoNodeError):
                joined = BusRecord.decode((await zookeeper.read(self._paths.base))[0])
            if group not in joined.groups:
                log.warning(
                    "bus %s: group %s has not joined, so its listener gets no new events; await bus.join(%r) once",
                    self._paths.name,
                    group,
                    group,
                    extra={"bus": self._paths.name},
                )

    async def join(self, group: str) -> None:
        """Add a group, unless it exists.

        Raises: InvalidNameError, InvalidOptionError, AccessDeniedError, PayloadError; NotCommittedError: the servers
        contradict each other.
        """
        self._paths.queue_of_group(group)
        await self._change(self._all, lambda groups: groups if group in groups else (*groups, group))

    async def leave(self, group: str) -> None:
        """Remove a group. Raises: NotFoundError; as `join`."""
        self._paths.queue_of_group(group)

        def without(groups: tuple[str, ...]) -> tuple[str, ...]:
            if group not in groups:
                msg = f"bus {self._paths.name!r} has no group {group!r}"
                raise NotFoundError(msg)
            return tuple(other for other in groups if other != group)

        await self._change(self.stored, without)

    async def _all(self) -> tuple[str, ...]:
        """Read the groups, and create the bus if it does not exist. Raises: AccessDeniedError, PayloadError."""
        return (await self.known())[0]

    async def _change(
        self, read: Callable[[], Awaitable[tuple[str, ...]]], change: Callable[[tuple[str, ...]], tuple[str, ...]]
    ) -> None:
        runtime, refusals = self._runtime, list[int]()
        while True:
            await runtime.zookeeper.sync(self._paths.base)  # another session may have changed it before this call
            self.forget()  # after it: a read that another task sent earlier has been answered by now
            before = await read()
            groups = change(before)
            if groups == before:
                return
            modified = self._modified
            operation = SetData(self._paths.base, replace(self._record, groups=groups).encode(), self._version)
            try:
                await runtime.settle(
                    AtomicWrite(runtime.ids.next(), FixedOperations(self._subject, [operation], self._explain))
                )
            except GroupsChangedError:
                refusals.append(modified)
                if refusals.count(modified) == MOST_REFUSALS:
                    raise self.inconsistent(UNCHANGED) from None
                continue
            self.forget()
            return

    @property
    def _subject(self) -> str:
        return f"bus {self._paths.name!r}"

    def _explain(self, error: ZooKeeperError) -> QueueError | None:
        if isinstance(error, BadVersionError | NoNodeError):
            return GroupsChangedError(f"{self._paths.base}: {error}")
        return None

    async def _read(self) -> bool:
        """Read the record; return whether there is one. Raises: AccessDeniedError, PayloadError."""
        zookeeper, base = self._runtime.zookeeper, self._paths.base
        try:
            data, stat = await read_latest(zookeeper, base)
            self._record = BusRecord.decode(data)
        except NoNodeError:
            return False
        except NoAuthError as error:
            raise right_denied(self._subject, f"read {base}", error) from error
        except MalformedError as error:
            msg = f"{base}: {error}"
            raise PayloadError(msg) from error
        self._version, self._modified, self._known = stat.version, stat.mzxid, True
        return True

    async def _create(self) -> None:
        """Create the bus, unless it exists. Raises: AccessDeniedError."""
        try:
            await self._runtime.zookeeper.ensure(self._paths.base)
        except NoAuthError as error:
            refused = self._paths.base if error.path is None else error.path
            raise right_denied(self._subject, f"create children of {parent_of(refused)}", error) from error


class GroupsCheck(Part):
    """Asserts that a bus has the groups that an event is put to."""

    __slots__ = ("_changed", "_path", "modified", "version")

    def __init__(self, path: str, version: int, changed: Callable[[], None], modified: int) -> None:
        super().__init__(OPERATION_WEIGHT)
        self._path = path
        self.version: int = version
        """The version of the bus's record."""
        self.modified: int = modified
        """The zxid of the record. A bus that was deleted and created again has the same versions."""
        self._changed = changed

    def compose(self, composition: Composition) -> None:
        """Add the check."""
        composition.operations.append(Check(self._path, self.version))

    def repair(self, operation: Operation, error: ZooKeeperError) -> Coroutine[object, object, None] | None:
        """A group has joined or left: the post must be repeated for the new groups.

        Raises: GroupsChangedError, AccessDeniedError; NotCommittedError: the server refuses the check itself.
        """
        if isinstance(error, NoAuthError):
            raise right_denied(f"bus {name_at(self._path)!r}", f"read {self._path}", error) from error
        self._changed()
        if not isinstance(error, BadVersionError | NoNodeError):
            msg = f"{operation.path}: {error}; nothing was committed"
            raise NotCommittedError(msg)
        raise GroupsChangedError(
            f"{operation.path}: a group joined or left the bus while an event was posted ({error}); "
            "nothing was committed; repeat it"
        )
