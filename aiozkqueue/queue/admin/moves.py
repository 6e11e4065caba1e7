"""Moving a queue's messages to another, in the background, by whichever session is there to do it.

A move takes along what lies in its source when it begins: the items created up to the zxid of its own znode. Each goes
by one settlement that removes it here and creates it there (see `transfer`), so at every instant a message is in one of
the two, and of several runners one takes it along: nothing is lost or doubled whoever dies when. What a transaction or
delivery holds stays until it is given back or consumed; leases and backoffs end with the move. What is handed on to all
nodes meanwhile (`handing_on`) is another item since, but keeps its sequence number: the record tells which of them had
been given out when the move began.

The runner is marked by an ephemeral znode, which only saves others the work: what it marks is as safe without.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import (
    AccessDeniedError,
    InvalidOptionError,
    NotCommittedError,
    QueueError,
    SessionClosedError,
    UnknownMoveError,
)
from aiozkqueue.layout import MalformedError, check_queue_name
from aiozkqueue.layout.moves import MovePaths, MoveRecord
from aiozkqueue.moments import moment_at
from aiozkqueue.queue.commit.dispositions import Disposition
from aiozkqueue.queue.commit.transfer import transfer
from aiozkqueue.queue.commit.unclaimed import find_pages, removal
from aiozkqueue.queue.destination import Destination, not_own
from aiozkqueue.queue.put.prepare import restored
from aiozkqueue.queue.runtime.deadline import FOREVER
from aiozkqueue.zookeeper import (
    ConnectionLossError,
    Create,
    Delete,
    MultiError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    SetData,
    ZooKeeperError,
    below,
)
from aiozkqueue.zookeeper import SessionExpiredError as ZooKeeperSessionExpiredError

from .listing import walk
from .stats import configuration, lanes, put_into, stat_lanes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from aiozkqueue.layout import ItemName
    from aiozkqueue.layout.moves import MoveState
    from aiozkqueue.queue.commit.unclaimed import ItemSnapshot, Sealed
    from aiozkqueue.queue.session_core import SessionCore
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Node, Operation

log: Final = logging.getLogger(__name__)

#: Seconds after which what others hold is looked at again, at first and at the most.
FIRST_PATIENCE = 0.1
MOST_PATIENCE = 2.0
#: Lanes of which a record tells how far they had come; there are more only where messages are put for many hours.
MOST_COUNTERS = 1000
#: How long the record of a move that has ended is kept.
KEPT = timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveStatus:
    """How far a move has got."""

    reference: str
    source: str
    target: str
    state: MoveState
    """``running``, ``done``, or ``failed``: some messages could not be moved, and are where they were."""
    moved: int
    """Messages that are in the target; while it runs, at least so many."""
    started: datetime
    ended: datetime | None
    error: str | None


class Moves:
    """The moves under a session's root: `QueueSession.moves`."""

    def __init__(self, engine: SessionCore) -> None:
        self._engine = engine
        self._paths = MovePaths(engine.root)

    async def start(self, source: Destination[Any] | str, target: Destination[Any] | str) -> str:
        """Begin to move all messages that are in ``source`` now to ``target``; return the move's reference.

        Each keeps its id, headers, key, priority, group and time of put; its attempts begin anew. The work goes on in
        this session's background, and is taken up by another when this one ends. A target with a size takes as many as
        fit, and the others wait in the source for room.

        Raises:
            InvalidOptionError: both are the same queue, or one is another program's.
            InvalidNameError, AccessDeniedError, SessionClosedError, WrongLoopError.
        """
        names, engine = self.check(source, target), self._engine
        reference = engine.ids.next()
        record = MoveRecord(names[0], names[1], counters=await self._counters(names[0]))
        await self._write([Create(self._paths.move(reference), record.encode())])
        engine.tasks.spawn(self._run, reference, name=f"move {reference}")
        return reference

    def check(self, source: Destination[Any] | str, target: Destination[Any] | str) -> tuple[str, str]:
        """Refuse what `start` refuses, and begin nothing; return the names of both. Raises: as `start`."""
        engine = self._engine
        engine.check()
        for queue in (source, target):
            if not isinstance(queue, Destination):
                continue
            if queue.owner is not engine:
                raise not_own(queue.name)
            if queue.dialect is not None:
                raise _foreign(queue.name, queue.dialect.title())
        names = [queue.name if isinstance(queue, Destination) else queue for queue in (source, target)]
        for name in names:
            if isinstance(name, str) and name.startswith("/"):  # type: ignore[redundant-expr]
                raise _foreign(name, "a path, and so another program's queue")
            check_queue_name(name)
        if names[0] == names[1]:
            msg = f"cannot move queue {names[0]!r} to itself"
            raise InvalidOptionError(msg)
        return names[0], names[1]

    async def _counters(self, source: str) -> dict[str, int]:
        """Read how far the lanes of a queue have come whose messages may be handed on; of others nothing."""
        store = self._engine.store(source)
        config = await configuration(self._engine, store)
        if config is None or config.affinity != "producer":
            return {}
        stats = await stat_lanes(self._engine, store)
        return {store.paths.place_of(lane): put_into(stat) for lane, stat in islice(stats.items(), MOST_COUNTERS)}

    async def status(self, reference: str) -> MoveStatus:
        """Tell how far a move has got.

        Raises: UnknownMoveError: there is none of this reference, or its record has expired; AccessDeniedError,
        SessionClosedError, WrongLoopError.
        """
        self._engine.check()
        if not isinstance(reference, str) or not reference or "/" in reference:  # type: ignore[redundant-expr]
            raise UnknownMoveError(reference)
        status = await self._read(reference)
        if status is None:
            raise UnknownMoveError(reference)
        return status

    async def all(self) -> list[MoveStatus]:
        """List all moves, the oldest first. Raises: AccessDeniedError, SessionClosedError, WrongLoopError."""
        self._engine.check()
        found = [await self._read(reference) for reference in await self._references()]
        return sorted((one for one in found if one is not None), key=lambda one: one.started)

    async def resume(self) -> int:
        """Take up the moves that nobody works on, and forget those that ended long ago; return how many it took up.

        Raises: AccessDeniedError, SessionClosedError, WrongLoopError.
        """
        taken = 0
        for status in await self.all():
            path = self._paths.move(status.reference)
            if status.ended is not None:
                if moment_at(self._engine.server_clock.now()) - status.ended > KEPT:
                    await self._delete(path)
            elif await self._engine.zookeeper.exists(self._paths.runner(status.reference)) is None:
                self._engine.tasks.spawn(self._run, status.reference, name=f"move {status.reference}")
                taken += 1
        return taken

    # -- the runner

    async def _run(self, reference: str) -> None:
        zookeeper, runner = self._engine.zookeeper, self._paths.runner(reference)
        while True:
            generation = await zookeeper.wait_connected()
            try:
                await zookeeper.multi([Create(runner, self._engine.ids.client.encode(), ephemeral=True)])
            except (ConnectionLossError, ZooKeeperSessionExpiredError):
                continue
            except MultiError as error:
                if not isinstance(error.error, NodeExistsError) or not await self._is_ours(runner):
                    return  # another session works on it, or it is gone
            try:
                await self._finish(reference, generation)
            except (ConnectionLossError, ZooKeeperSessionExpiredError):
                continue
            except SessionClosedError:
                return  # another session takes it up
            except (QueueError, ZooKeeperError, MalformedError) as error:
                log.warning("move %s: %s", reference, error, extra={"move": reference})
                await self._note(reference, error=str(error))
            await self._delete(runner)
            return

    async def _is_ours(self, runner: str) -> bool:
        try:
            node = await self._engine.zookeeper.read(runner)
        except NoNodeError:
            return False
        return node.data == self._engine.ids.client.encode()

    async def _finish(self, reference: str, generation: int) -> None:
        """Move all there is to move, and say so."""
        engine = self._engine
        node = await engine.zookeeper.read(self._paths.move(reference), generation=generation)
        record = MoveRecord.decode(node.data)
        if record.state != "running":
            return
        source, target = engine.store(record.source), engine.store(record.target)
        patience, moved, failed = FIRST_PATIENCE, record.moved, dict[str, QueueError]()
        while await source.exists():  # else there is nothing to move, and opening it would make it
            held, before, found, listed = 0, moved, 0, 0
            await source.open()
            await target.open()
            base = f"{source.paths.base}/"
            async for placed in walk(engine, source, await lanes(engine, source)):
                names = {one.item.text: one.item for one in placed}
                places = [one.path.removeprefix(base) for one in placed if one.item.id not in failed]
                listed += len(places)
                sealed: Sealed = {}
                async for page in find_pages(engine, source, places, sealed):
                    found += len(page)
                    mine = [one for one in page if _was_there(one, names[one.name], record, node)]
                    free = [one for one in mine if not one.in_flight]
                    known = len(failed)
                    done = await self._transfer(source, target, free, names, failed)
                    moved += done
                    held += len(mine) - done - (len(failed) - known)  # also what was claimed, or consumed, just now
                    if free:
                        await self._note(reference, moved=moved)
                listed -= len(sealed)
                failed.update({names[place.rpartition("/")[2]].id: error for place, error in sealed.items()})
            handed_on = bool(record.counters) and found < listed  # or consumed, since they were listed
            if not held and not handed_on:
                break
            patience = FIRST_PATIENCE if moved > before else min(2 * patience, MOST_PATIENCE)
            await asyncio.sleep(patience)
        error = None
        if failed:
            error = f"{len(failed)} messages stay in {record.source}; one of them: {next(iter(failed.values()))}"
        await self._note(reference, moved=moved, done=True, error=error)

    async def _transfer(
        self,
        source: QueueState,
        target: QueueState,
        free: Sequence[ItemSnapshot],
        names: Mapping[str, ItemName],
        failed: dict[str, QueueError],
    ) -> int:
        """Put what nobody holds into the target, and remove it from the source with that; return how many went.

        Those that the target refuses are added to ``failed``.
        """
        engine, disposition = self._engine, Disposition("remove", reason=f"moved to {target.name}")
        pairs = [
            (restored(engine, target, names[one.name], one.item), removal(engine, source, one, disposition))
            for one in free
        ]
        moved = 0
        for one, outcome in zip(free, await transfer(engine, pairs, FOREVER), strict=True):
            if isinstance(outcome, QueueError):
                failed[one.id] = outcome
            else:
                moved += outcome
        return moved

    async def _note(
        self, reference: str, *, moved: int | None = None, done: bool = False, error: str | None = None
    ) -> None:
        """Write down how far it has got; a later state is never taken back."""
        path = self._paths.move(reference)
        while True:
            try:
                node = await self._engine.zookeeper.read(path)
            except NoNodeError:
                return
            record = MoveRecord.decode(node.data)
            if record.state != "running":
                return
            changed = replace(record, moved=max(record.moved, moved or 0), error=error)
            if done or error is not None:
                changed = replace(changed, state="failed" if error else "done", ended=self._engine.server_clock.now())
            try:
                await self._engine.zookeeper.multi([SetData(path, changed.encode(), node.stat.version)])
            except ConnectionLossError:
                await self._engine.zookeeper.wait_connected()
            except MultiError:
                continue
            else:
                return

    # -- znodes

    async def _references(self) -> list[str]:
        try:
            return await below(self._engine.zookeeper, self._paths.base)
        except NoAuthError as error:
            raise self._denied(error) from error

    async def _read(self, reference: str) -> MoveStatus | None:
        try:
            node = await self._engine.zookeeper.read(self._paths.move(reference))
            record = MoveRecord.decode(node.data)
        except (NoNodeError, MalformedError):
            return None
        except NoAuthError as error:
            raise self._denied(error) from error
        return MoveStatus(
            reference=reference,
            source=record.source,
            target=record.target,
            state=record.state,
            moved=record.moved,
            started=moment_at(node.stat.ctime),
            ended=None if record.ended is None else moment_at(record.ended),
            error=record.error,
        )

    async def _write(self, operations: list[Operation]) -> None:
        """Create a znode of a name that is new, and so may be sent twice."""
        zookeeper = self._engine.zookeeper
        while True:
            try:
                await zookeeper.multi(operations)
            except (ConnectionLossError, ZooKeeperSessionExpiredError):
                await zookeeper.wait_connected()
            except MultiError as error:
                if isinstance(error.error, NodeExistsError):
                    return  # an earlier copy was applied, its reply lost
                if isinstance(error.error, NoNodeError):
                    await zookeeper.ensure(self._paths.base)
                elif isinstance(error.error, NoAuthError):
                    raise self._denied(error.error) from error
                else:
                    raise NotCommittedError(str(error)) from error
            else:
                return

    async def _delete(self, path: str) -> None:
        try:
            await self._engine.zookeeper.multi([Delete(path)])
        except (MultiError, ConnectionLossError, ZooKeeperSessionExpiredError) as error:
            log.debug("%s is left to the next who looks: %s", path, error, extra={"move": path.rpartition("/")[2]})

    def _denied(self, error: NoAuthError) -> AccessDeniedError:
        return AccessDeniedError(f"moves under {self._paths.base}: {error}; connect with `auth=` of an allowed user")


def _foreign(queue: str, what: str) -> InvalidOptionError:
    """Make the error for a queue that a move cannot take."""
    return InvalidOptionError(
        f"queue {queue!r} is {what}: nothing is moved from or to it, since its items have no place for the id, "
        "headers, group and time of put that a move keeps; take and put in a transaction, message by message, instead"
    )


def _was_there(found: ItemSnapshot, item: ItemName, record: MoveRecord, node: Node) -> bool:
    """Whether a message lay in the source when the move began: by when it was made, or by the counter of its lane."""
    counter = record.counters.get(found.place.rpartition("/")[0], 0)
    return found.item.stat.czxid <= node.stat.czxid or item.sequence < counter
