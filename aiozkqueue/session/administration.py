"""Administration for operators: `Queue.admin` and `QueueSession.admin`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from aiozkqueue.arguments import flag, text
from aiozkqueue.batches.ledger import Ledger
from aiozkqueue.errors import AccessDeniedError, ConnectionLostError, InvalidOptionError
from aiozkqueue.layout import MOST_REAPED, check_integer, check_queue_name, positive_seconds
from aiozkqueue.operations.affinity import reassign
from aiozkqueue.operations.batch_writers import give_up, writers
from aiozkqueue.operations.budget import BUDGET
from aiozkqueue.operations.bundles import unbundle
from aiozkqueue.operations.cleaning import Cleaned, clean
from aiozkqueue.operations.consumers import ConsumerInfo, consumers
from aiozkqueue.operations.deletion import delete
from aiozkqueue.operations.doctor.probe import examine
from aiozkqueue.operations.history_pins import pins, unpin
from aiozkqueue.operations.ledger_pages import path_of_ledger
from aiozkqueue.operations.ledgers import ledgers, release
from aiozkqueue.operations.moves import Moves
from aiozkqueue.operations.release import release_claims
from aiozkqueue.runtime.acl_errors import translate_denials
from aiozkqueue.zookeeper import ConnectionLossError, NoAuthError, changes, reads
from aiozkqueue.zookeeper import SessionExpiredError as ZooKeeperSessionExpiredError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.arguments import Seconds
    from aiozkqueue.errors import PayloadError
    from aiozkqueue.operations.batch_writers import WriterInfo
    from aiozkqueue.operations.doctor.diagnosis import Diagnosis
    from aiozkqueue.operations.history_pins import Pin
    from aiozkqueue.operations.ledgers import LedgerInfo
    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.zookeeper import CallLimit

    from .core import SessionCore

log: Final = logging.getLogger(__name__)


class QueueAdmin:
    """Administration of one queue, for operators: `Queue.admin`.

    It shows and releases the messages that consumers, streams, writers and audits hold.
    """

    __slots__ = ("_unchecked",)

    def __init__(self, handle: QueueHandle[SessionCore]) -> None:
        self._unchecked = handle

    @property
    def _handle(self) -> QueueHandle[SessionCore]:
        """The handle of the queue. Raises: SessionClosedError, WrongLoopError."""
        self._unchecked.runtime.check()
        return self._unchecked

    @property
    def _limit(self) -> CallLimit:
        """The limit of one call, which `reads` and `changes` apply."""
        return self._unchecked.runtime.limit(f"queue {self._unchecked.name!r}")

    @reads
    async def consumers(self) -> list[ConsumerInfo]:
        """Return the live sessions that consume the queue, with the messages that each holds.

        Lists the queue if it has bundles, or if a session holds messages of a group. Consumers and messages that this
        user may not read are left out, with a warning in the log.

        Raises: AccessDeniedError, PayloadError, ConnectionLostError, SessionClosedError, WrongLoopError.
        """
        handle, unreadable = self._handle, list[AccessDeniedError]()
        found = await consumers(handle, unreadable=unreadable)
        if unreadable:
            text = "queue %s: not all consumers and their messages are shown: %s"
            log.warning(text, handle.name, unreadable[0], extra={"queue": handle.name})
        return found

    @changes
    async def reap(self, *, limit: int | None = None) -> int:
        """Reassign the oldest stale messages of other nodes, so that any node can take them; return how many.

        One call reassigns up to ``limit`` messages (None: the queue's ``reap_limit``). Messages that this session's own
        node has put stay with it, whether or not this session takes any. The janitor does the same every ``reap_every``
        seconds, unless the queue is paused. Only queues with ``affinity="producer"`` have such messages.

        Raises: InvalidOptionError: ``limit`` is not an integer from 1 to 1,000; AccessDeniedError, PayloadError,
        ConfigConflictError, OutcomeUnknownError, NotCommittedError, SessionClosedError, WrongLoopError.
        """
        handle = self._handle
        if limit is not None:
            check_integer("limit", limit, 1, MOST_REAPED)
        return await reassign(handle, limit)

    @changes
    async def release_claims(self) -> int:
        """Release every claim by force, and end every delay; return how many. The holders' commits then fail.

        An attempt that a holder has recorded stays counted, as after a crash, even if it has not delivered the message.

        Raises:
            PartlyDeniedError: this user may not read or change some of the messages; all other claims are released.
            AccessDeniedError, PayloadError, NotCommittedError, OutcomeUnknownError, SessionClosedError, WrongLoopError.
        """
        return await release_claims(self._handle)

    @changes
    async def unbundle(self) -> int:
        """Store each message in a separate znode again; return the number of remaining bundles.

        This sets ``bundle=1`` and replaces each bundle by its messages as single items. Bundles remain while
        consumers or unfinished Spark writes hold them. Until then, the configuration requires programs that
        support bundles: call this again until it returns 0.

        Raises: AccessDeniedError, ConfigConflictError, PayloadError, NotCommittedError, OutcomeUnknownError,
        SessionClosedError, WrongLoopError.
        """
        return await unbundle(self._handle)

    @reads
    async def ledgers(self) -> list[LedgerInfo]:
        """Return the Spark streams that hold or have held messages of the queue.

        Raises:
            PayloadError: a stored record cannot be decoded.
            AccessDeniedError, ConnectionLostError, SessionClosedError, WrongLoopError.
        """
        return await ledgers(self._handle)

    @changes
    async def release_ledger(self, group: str) -> int:
        """Release the messages that a stream holds; return how many. A stream that still runs fails at its next change.

        Messages of a batch whose acknowledgement had begun are removed, not released: they have been processed.

        Raises:
            NotFoundError: there is no such stream.
            ClaimLostError: the stream was started again in the meantime; release it again.
            PayloadError: its stored record cannot be decoded.
            AccessDeniedError, NotCommittedError, OutcomeUnknownError, SessionClosedError, WrongLoopError.
        """
        handle, group = self._handle, text(group, "group", "the name of a stream, as `ledgers` returns it")
        with translate_denials(handle.state.name):
            if await handle.runtime.zookeeper.exists(path_of_ledger(handle.paths, group)) is not None:
                await Ledger(handle, group).finish()
            released = await release(handle, group)
            await Ledger(handle, group).finish()  # messages that the stream has marked as done since
        return released

    @reads
    async def unfinished(self) -> list[WriterInfo]:
        """Return the incomplete batches of Spark's writers, whose messages are not visible yet.

        Raises: AccessDeniedError, ConnectionLostError, SessionClosedError, WrongLoopError.
        """
        return await writers(self._handle)

    @changes
    async def discard_unfinished(self, writer: str) -> int:
        """Remove a writer's messages of an incomplete batch; return how many.

        If the writer is still running, its further puts fail, and it must write the batch again.

        Raises: NotFoundError: there is no such writer; InvalidOptionError, AccessDeniedError, PayloadError,
        NotCommittedError, OutcomeUnknownError, SessionClosedError, WrongLoopError.
        """
        return await give_up(self._handle, text(writer, "writer", "the name of a writer, as `unfinished` returns it"))

    @changes
    async def delete(self, *, force: bool = False) -> None:
        """Delete the queue with its configuration, history, unique keys and all other data.

        After this the queue does not exist, for any program, nor does the notification queue that is kept in it. A
        later put creates a new one. Consumers wait for it, and commits of messages of the deleted queue fail with
        `ClaimLostError`. A put at the same moment is stored before the deletion or into the new queue. A redrive of
        its dead letters at the same moment, or one that waits for capacity, may create it again, empty. If this call
        ends early, the queue may be deleted already, and the janitor of any session removes the rest of the data within
        two hours.

        Args:
            force: delete the queue even if it holds messages or dead letters, which are lost, if other sessions
                or Spark streams consume it, or if there are other znodes below its own. Of these, only the messages
                of a queue of Curator or kazoo with the same path are kept.

        Raises:
            NotFoundError: there is no such queue.
            QueueInUseError: without ``force``; nothing was deleted.
            InvalidOptionError: the queue belongs to another program.
            AccessDeniedError, NotCommittedError, OutcomeUnknownError, SessionClosedError, WrongLoopError.
        """
        handle, forced = self._handle, flag(force, "force")
        if handle.state.dialect is not None:
            msg = f"queue {handle.name!r} is {handle.state.dialect.title()}'s; delete it by its own program"
            raise InvalidOptionError(msg)
        await delete(handle, force=forced)

    @reads
    async def pins(self) -> list[Pin]:
        """Return the pins on the history, by which audits that run or were interrupted keep it from clean-up.

        Raises: AccessDeniedError, ConnectionLostError, SessionClosedError, WrongLoopError.
        """
        return await pins(self._handle)

    @changes
    async def unpin(self, name: str) -> bool:
        """Remove a pin, so that clean-up may remove the history again; return whether it existed.

        A running audit then moves the records that clean-up leaves; an interrupted audit is abandoned.

        Raises: InvalidOptionError, AccessDeniedError, NotCommittedError, OutcomeUnknownError, SessionClosedError,
        WrongLoopError.
        """
        return await unpin(self._handle, text(name, "name", "the name of a retention hold, as `pins` returns it"))


class SessionAdmin:
    """Administration of the queues below a session's root, for operators: `QueueSession.admin`."""

    __slots__ = ("_unchecked",)

    def __init__(self, runtime: SessionCore) -> None:
        self._unchecked = runtime

    @property
    def _runtime(self) -> SessionCore:
        """The core of the session. Raises: SessionClosedError, WrongLoopError."""
        self._unchecked.check()
        return self._unchecked

    @property
    def _limit(self) -> CallLimit:
        """The limit of one call, which `reads` and `changes` apply."""
        return self._unchecked.limit(f"root {self._unchecked.root}")

    @property
    def moves(self) -> Moves:
        """The moves of messages to another queue, in the background. Raises: SessionClosedError, WrongLoopError."""
        return Moves(self._runtime)

    @reads
    async def diagnose(self, *queues: str, budget: Seconds = BUDGET) -> Diagnosis:
        """Examine the servers and these queues (default: all), as `aiozkqueue doctor` does.

        It writes only one ephemeral znode, for a few moments. It lists every queue it examines. ``budget`` is
        the time for this, in seconds or as a timedelta. When it is used up, `Diagnosis.complete` is False, and
        `Diagnosis.unexamined` and `QueueFacts.complete` state the parts that were not examined.

        Raises:
            AccessDeniedError: this user may not even list the queues.
            ConnectionLostError: the connection was lost while its latency was measured.
            InvalidNameError, InvalidOptionError, SessionClosedError, WrongLoopError.
        """
        runtime, limit = self._runtime, positive_seconds("budget", budget)
        names = [check_queue_name(name) for name in queues]
        try:
            return await examine(runtime, names, limit)
        except NoAuthError as error:
            msg = f"root {runtime.root}: {error}; {error.advice}"
            raise AccessDeniedError(msg) from error
        except (ConnectionLossError, ZooKeeperSessionExpiredError) as error:
            msg = f"the connection was lost while its latency was measured: {error}; examine again"
            raise ConnectionLostError(msg) from error

    async def clean(self, *queues: str) -> list[Cleaned]:
        """Clean these queues now (default: all, and the commit slots of clients that no longer exist).

        The session's janitor does the same at the queues' intervals: it ends expired delays and leases, and
        removes history past its lifetime and the remains of deleted messages and hours. Several sessions may do it at
        once. One call removes up to 10,000 znodes of a queue (`Cleaned.more`).

        Raises:
            AccessDeniedError, PayloadError: a queue cannot be read completely; everything else has been cleaned.
            ConnectionLostError, InvalidNameError, NotCommittedError, OutcomeUnknownError, SessionClosedError,
                WrongLoopError.
        """
        cleaned, failures = await self._clean(queues)
        if failures:
            raise failures[0]
        return cleaned

    @changes
    async def _clean(self, queues: Sequence[str]) -> tuple[list[Cleaned], list[AccessDeniedError | PayloadError]]:
        """Clean as `clean` does; return the errors of the queues that cannot be read, too."""
        runtime = self._runtime
        states = [runtime.queue_state(name) for name in queues]
        return await clean(runtime, states or None)
