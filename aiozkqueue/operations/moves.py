"""Moves of a queue's messages to another queue: persistent, and continued by another session when one ends.

A move takes the messages that are in its source when it begins: the items created up to the zxid of its own znode. See
`mover` for how each is moved, and why none is lost or duplicated.

The session that works on a move has an ephemeral znode, which only saves other sessions the work: several may run a
move.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from aiozkqueue.dialects import described
from aiozkqueue.errors import (
    AccessDeniedError,
    ConfigConflictError,
    InvalidOptionError,
    NotCommittedError,
    QueueError,
    SessionClosedError,
    UnknownMoveError,
)
from aiozkqueue.layout import MalformedError, check_queue_name, fits_path
from aiozkqueue.layout.moves import MoveEnd, MovePaths, MoveRecord
from aiozkqueue.moments import moment_at
from aiozkqueue.queue.commit.handle import QueueHandle
from aiozkqueue.queue.destination import Destination, binding_of, not_own
from aiozkqueue.runtime.acl_errors import translate_denials
from aiozkqueue.wording import counted
from aiozkqueue.zookeeper import (
    BadVersionError,
    ClientClosedError,
    Create,
    Delete,
    MultiError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    SetData,
    ZooKeeperError,
    apply_until_answered,
    below,
    changes,
    reads,
)
from aiozkqueue.zookeeper import SessionExpiredError as ZooKeeperSessionExpiredError

from .mover import Mover, survey
from .stats import configuration, stat_lanes

if TYPE_CHECKING:
    from typing import Any

    from aiozkqueue.layout.moves import MoveState
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import CallLimit, Operation

log: Final = logging.getLogger(__name__)

#: Lanes whose counters fit into a record. More lanes with messages exist only if messages are put for many hours, or
#: with many shards for many priorities.
MOST_COUNTERS = 1800
#: The line of the log about a move that an error has ended; `MoveStatus.error` has the same error.
FAILED: Final = "move %s: %s"
#: How long the record of an ended move is kept.
KEPT = timedelta(days=7)
#: How often a change of a record is tried when other sessions change it at the same time.
MOST_TRIES: Final = 20
#: The moves whose records an ACL or a quota protects, by session: each is logged once.
_protected: Final[WeakKeyDictionary[Runtime, set[str]]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveStatus:
    """The progress of a move."""

    reference: str
    source: str
    target: str
    state: MoveState
    """``running``, ``done``, or ``failed``: some messages could not be moved, and are still in the source."""
    moved: int
    """Messages that are in the target; a lower bound while the move runs."""
    started: datetime
    ended: datetime | None
    error: str | None
    unattended: bool
    """Whether it runs, but no session works on it: `Moves.resume` and the HTTP service continue it."""


class Moves:
    """The moves under a session's root: `SessionAdmin.moves`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._paths = MovePaths(runtime.root)

    @property
    def _limit(self) -> CallLimit:
        """The limit of one call, which `reads` and `changes` apply."""
        return self._runtime.limit("moves")

    @changes
    async def start(self, source: Destination[Any] | str, target: Destination[Any] | str) -> str:
        """Begin to move all messages that are in ``source`` now to ``target``; return the move's reference.

        Each keeps its id, headers, key, priority, group and time of put; its attempts are counted from 0 again. The
        move runs in this session's background. When this session ends, the HTTP service continues the move, or a
        session that calls `resume`. A target with ``max_size`` takes as many as fit, and the others wait in the source
        for capacity.

        Either queue may be another program's: give a `QueueSession.curator_queue` or a `QueueSession.kazoo_queue`.
        Messages from there get new ids. Keys, delays and priorities are kept (a priority as its distance from the
        default), and an item of several messages becomes one message each. The whole source is then read first. If the
        target does not support a property of a message, this raises an error, and nothing is moved.

        Raises:
            InvalidOptionError: both are the same queue, or the target does not support a property of a message.
            MessageTooLargeError, PayloadError: a message does not fit into the target, or does not decode.
            InvalidNameError, AccessDeniedError, NotCommittedError, OutcomeUnknownError, SessionClosedError,
            WrongLoopError.
        """
        ends, runtime = self._ends(source, target), self._runtime
        counters = await self._counters(*map(self._state, ends))
        reference = runtime.ids.next()
        await self._write([Create(self._paths.move(reference), MoveRecord(*ends, counters=counters).encode())])
        runtime.tasks.spawn(self._run, reference, name=f"move {reference}")
        return reference

    def check(self, source: Destination[Any] | str, target: Destination[Any] | str) -> tuple[str, str]:
        """Make the checks of `start` that need no read of the queues; return the names of both. Raises: as `start`."""
        ends = self._ends(source, target)
        return ends[0].name, ends[1].name

    def _ends(self, source: Destination[Any] | str, target: Destination[Any] | str) -> tuple[MoveEnd, MoveEnd]:
        self._runtime.check()
        ends = self._end(source), self._end(target)
        if ends[0].name == ends[1].name or self._state(ends[0]).paths.items == self._state(ends[1]).paths.items:
            msg = f"cannot move queue {ends[0].name!r} to itself"
            raise InvalidOptionError(msg)
        return ends

    def _end(self, queue: Destination[Any] | str) -> MoveEnd:
        if isinstance(queue, Destination):
            binding = binding_of(queue)
            if binding.owner is not self._runtime:
                raise not_own(queue.name)
            if binding.dialect is not None:
                return MoveEnd(queue.name, binding.dialect.settings())
        name = queue.name if isinstance(queue, Destination) else queue
        if isinstance(name, str) and name.startswith("/"):  # type: ignore[redundant-expr]  # callers may be unchecked
            msg = (
                f"{name!r} is a path, and so another program's queue: give `session.curator_queue({name!r})` or "
                f"`session.kazoo_queue({name!r})`, with the options that its clients use; the command takes "
                "--from-curator or --from-kazoo PATH, and --to-curator or --to-kazoo PATH"
            )
            raise InvalidOptionError(msg)
        return MoveEnd(check_queue_name(name))

    def _state(self, end: MoveEnd) -> QueueState:
        """Return one of the queues of a move. Raises: ConfigConflictError: this session uses it in another layout."""
        if end.layout is None:
            return self._runtime.queue_state(end.name)
        return self._runtime.foreign(described(end.name, end.layout))

    async def _counters(self, source: QueueState, target: QueueState) -> dict[str, int]:
        """Read the counters of the lanes of a queue whose items may be created again under their numbers.

        Raises: as `start`.
        """
        runtime = self._runtime
        following = 0
        if source.dialect is not None or target.dialect is not None:
            following = await survey(runtime, source, target)
        if source.dialect is not None:
            with translate_denials(source.name):
                await runtime.zookeeper.sync(source.paths.items)  # a lagging server knows too few items
                stat = await runtime.zookeeper.exists(source.paths.items)
            # The numbers of a copied queue are larger than the counter of its folder.
            return (
                {}
                if stat is None
                else {source.paths.place_of(source.paths.items): max(following, stat.children_created)}
            )
        await runtime.zookeeper.sync(source.paths.base)  # as above
        handle = QueueHandle(runtime, source)
        if await configuration(handle) is None:
            return {}
        stats = await stat_lanes(handle)
        filled = ((lane, stat) for lane, stat in stats.items() if stat.num_children)
        return {source.paths.place_of(lane): stat.children_created for lane, stat in islice(filled, MOST_COUNTERS)}

    @reads
    async def status(self, reference: str) -> MoveStatus:
        """Return the progress of a move.

        Raises: UnknownMoveError: there is no move with this reference, or its record has expired; AccessDeniedError,
        ConnectionLostError, SessionClosedError, WrongLoopError.
        """
        self._runtime.check()
        if not isinstance(reference, str) or "/" in reference or not reference or not fits_path(reference):  # type: ignore[redundant-expr]  # callers may be unchecked
            raise UnknownMoveError(reference)
        status = await self._read(reference)
        if status is None:  # a lagging server may not know a new one
            await self._runtime.zookeeper.sync(self._paths.move(reference))
            status = await self._read(reference)
        if status is None:
            raise UnknownMoveError(reference)
        return status

    @reads
    async def all(self) -> list[MoveStatus]:
        """List all moves that this user may read, the oldest first.

        Raises: AccessDeniedError: this user may not list the moves; ConnectionLostError, SessionClosedError,
        WrongLoopError.
        """
        self._runtime.check()
        found: list[MoveStatus] = []
        for reference in await self._references():
            with suppress(AccessDeniedError):  # another user's, which the sessions of that user continue
                if (status := await self._read(reference)) is not None:
                    found.append(status)
        return sorted(found, key=lambda status: status.started)

    @changes
    async def resume(self) -> int:
        """Continue the moves that no session works on, and remove the records of those that ended long ago.

        Moves that this user may not read are left to other sessions. Return how many it continues.

        Raises: AccessDeniedError, NotCommittedError, OutcomeUnknownError, SessionClosedError, WrongLoopError.
        """
        taken = 0
        for status in await self.all():
            path = self._paths.move(status.reference)
            if status.ended is not None:
                if moment_at(self._runtime.server_clock.now()) - status.ended > KEPT:
                    await self._delete(path, status.reference)
            elif status.unattended:
                self._runtime.tasks.spawn(self._run, status.reference, name=f"move {status.reference}")
                taken += 1
        return taken

    # -- the runner

    async def _run(self, reference: str) -> None:
        """Work on a move, in one ZooKeeper session after another, unless another session does."""
        zookeeper, runner = self._runtime.zookeeper, self._paths.runner(reference)
        while True:
            try:
                generation = await zookeeper.wait_connected()
                if not await self._begin(reference, generation):
                    return  # another session works on it, or it is gone
                try:
                    await self._finish(reference, generation)
                except (ZooKeeperSessionExpiredError, SessionClosedError):
                    raise
                except (QueueError, ZooKeeperError, MalformedError) as error:
                    log.warning(FAILED, reference, error, extra={"move": reference})
                    await self._note(reference, error=str(error))
            except ZooKeeperSessionExpiredError:
                continue
            except (QueueError, ZooKeeperError):  # closed, or failed
                return  # another session continues it
            await self._delete(runner, reference, generation)
            return

    async def _begin(self, reference: str, generation: int) -> bool:
        """Create the znode of the session that works on a move; return whether it is this session's."""
        zookeeper, runner = self._runtime.zookeeper, self._paths.runner(reference)
        data = self._runtime.ids.client.encode()

        async def applied(_: MultiError) -> bool:
            (node,) = await zookeeper.read_many([runner], generation=generation)
            return node is not None and node.data == data

        create = Create(runner, data, ephemeral=True)
        try:
            await apply_until_answered(zookeeper, [create], generation=generation, applied=applied)
        except ZooKeeperSessionExpiredError:
            raise
        except ZooKeeperError as refused:
            error = refused.error if isinstance(refused, MultiError) else refused
            if not isinstance(error, NodeExistsError | NoNodeError | ClientClosedError):
                self._warn_once(reference, "move %s is left to another session, or to a later `resume`: %s", error)
            return False
        return True

    async def _finish(self, reference: str, generation: int) -> None:
        """Move all messages, and record the result."""
        runtime = self._runtime
        node = await runtime.zookeeper.read(self._paths.move(reference), generation=generation)
        record = MoveRecord.decode(node.data)
        if record.state != "running":
            return
        try:
            source, target = self._state(record.source), self._state(record.target)
        except ConfigConflictError as error:
            log.warning("move %s is left to another session: %s", reference, error, extra={"move": reference})
            return
        mover = Mover(runtime, source, target, record, node.stat.czxid)
        await mover.run(lambda moved: self._note(reference, moved=moved))
        failure = None
        if mover.failed:
            first = next(iter(mover.failed.values()))
            failure = f"{counted(len(mover.failed), 'message')} left in {source.name}; one of them: {first}"
        await self._note(reference, moved=mover.moved, done=True, error=failure)

    async def _note(
        self, reference: str, *, moved: int | None = None, done: bool = False, error: str | None = None
    ) -> None:
        """Record the progress; a later state is never overwritten."""
        path = self._paths.move(reference)
        refusal: ZooKeeperError = BadVersionError(path)
        for _ in range(MOST_TRIES):
            try:
                node = await self._runtime.zookeeper.read(path)
                record = MoveRecord.decode(node.data)
                if record.state != "running":
                    return
                changed = replace(record, moved=max(record.moved, moved or 0), error=error)
                if done or error is not None:
                    state: MoveState = "failed" if error else "done"
                    changed = replace(changed, state=state, ended=self._runtime.server_clock.now())
                write = SetData(path, changed.encode(), node.stat.version)
                await apply_until_answered(self._runtime.zookeeper, [write])
            except (NoNodeError, MalformedError, ClientClosedError):
                return
            except ZooKeeperError as refused:
                refusal = refused.error if isinstance(refused, MultiError) else refused
                if isinstance(refusal, BadVersionError | NoNodeError):
                    continue  # another session has changed it, or this change was applied and its reply lost
            else:
                return
            break
        text = "move %s: its record cannot be written, so it does not show the progress and the end: %s"
        self._warn_once(reference, text, refusal)

    def _warn_once(self, reference: str, text: str, error: ZooKeeperError) -> None:
        """Log the first refusal that concerns the znodes of a move in this session."""
        if reference not in (logged := _protected.setdefault(self._runtime, set())):
            logged.add(reference)
            advice = f"; {error.advice}" if isinstance(error, NoAuthError) else ""
            log.warning(text, reference, f"{error}{advice}", extra={"move": reference})

    # -- znodes

    async def _references(self) -> list[str]:
        try:
            return await below(self._runtime.zookeeper, self._paths.base)
        except NoAuthError as error:
            raise self._denied(error) from error

    async def _read(self, reference: str) -> MoveStatus | None:
        """Read the status of a move; None if it does not exist. Raises: AccessDeniedError."""
        stored, unattended = await self._stored(reference), False
        if stored is not None and stored[1].ended is None:
            unattended = await self._runtime.zookeeper.exists(self._paths.runner(reference)) is None
        if unattended:  # it may have ended meanwhile: its session records that before it removes its own znode
            stored = await self._stored(reference)
        if stored is None:
            return None
        started, record = stored
        return MoveStatus(
            reference=reference,
            source=record.source.name,
            target=record.target.name,
            state=record.state,
            moved=record.moved,
            started=started,
            ended=None if record.ended is None else moment_at(record.ended),
            error=record.error,
            unattended=unattended and record.ended is None,
        )

    async def _stored(self, reference: str) -> tuple[datetime, MoveRecord] | None:
        """Read when a move began, and its record; None if it does not exist. Raises: AccessDeniedError."""
        try:
            node = await self._runtime.zookeeper.read(self._paths.move(reference))
            record = MoveRecord.decode(node.data)
            for end in (record.source, record.target):
                if end.layout is not None:
                    described(end.name, end.layout)
        except (NoNodeError, MalformedError):
            return None
        except NoAuthError as error:
            raise self._denied(error) from error
        return moment_at(node.stat.ctime), record

    async def _write(self, operations: list[Operation]) -> None:
        """Create a znode with a new name, so the request may be sent twice."""
        zookeeper = self._runtime.zookeeper
        while True:
            try:
                await apply_until_answered(zookeeper, operations)
            except MultiError as error:
                if isinstance(error.error, NodeExistsError):
                    return  # an earlier copy was applied, its reply lost
                if isinstance(error.error, NoNodeError):
                    try:
                        await zookeeper.ensure(self._paths.base)
                    except NoAuthError as denial:
                        raise self._denied(denial) from denial
                elif isinstance(error.error, NoAuthError):
                    raise self._denied(error.error) from error
                else:
                    raise NotCommittedError(str(error)) from error
            else:
                return

    async def _delete(self, path: str, reference: str, generation: int | None = None) -> None:
        try:
            await apply_until_answered(self._runtime.zookeeper, [Delete(path)], generation=generation)
        except ZooKeeperError as error:
            log.debug("%s is left to the next session that checks: %s", path, error, extra={"move": reference})

    def _denied(self, error: NoAuthError) -> AccessDeniedError:
        return AccessDeniedError(f"moves under {self._paths.base}: {error}; {error.advice}")
