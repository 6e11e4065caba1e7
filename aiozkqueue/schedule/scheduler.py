"""Puts the messages of recurring jobs: each occurrence once, for any number of schedulers.

There is no leader. A scheduler that finds a job due sends one multi: check that no job was removed, set the job's
``last`` at the version read, and create the message. Of several schedulers that try, one succeeds; the multi uses a
commit slot, so a lost reply does not cause a second message. A scheduler that is too late reads the job again.
Schedulers sleep until the next occurrence or a change of a job.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

import anyio

from aiozkqueue.errors import DuplicateKeyError, InvalidScheduleError, NotCommittedError, QueueError, QueueFullError
from aiozkqueue.layout import name_at
from aiozkqueue.layout.jobs import SchedulePaths
from aiozkqueue.moments import milliseconds_in, moment_at
from aiozkqueue.operations.transfer import guarded
from aiozkqueue.queue.commit.conditional import Change, ConditionalPart
from aiozkqueue.queue.commit.create_items import live_of, weigh_put
from aiozkqueue.queue.commit.register import server_time
from aiozkqueue.queue.commit.unique_keys import earlier_holder
from aiozkqueue.queue.put.capacity import credits_of
from aiozkqueue.queue.put.prepare import make_ready, prepare
from aiozkqueue.runtime.deadline import AT_ONCE
from aiozkqueue.session.background import Background
from aiozkqueue.session.direct_puts import enter_live
from aiozkqueue.session.internals import core_of
from aiozkqueue.wording import counted
from aiozkqueue.zookeeper import Check, EventKind, SetData, State, parent_of

from .cron import load, to_put
from .jobs import (
    JOBS,
    JobChangedError,
    ensure_folder,
    left_alone,
    occurrence_options,
    read_jobs,
    readable,
    removals,
    replace_job,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from aiozkqueue.layout.jobs import JobRecord
    from aiozkqueue.queue.commit.put import Put
    from aiozkqueue.queue.commit.write import AtomicWrite
    from aiozkqueue.runtime.clock import Timer
    from aiozkqueue.session.core import SessionCore
    from aiozkqueue.session.session import QueueSession
    from aiozkqueue.zookeeper import Operation, WatchEvent

log: Final = logging.getLogger(__name__)

#: Seconds until a failed put of a job's message is tried again.
AGAIN = 5.0
#: Maximum seconds of sleep: the local clock may run slower than the server's.
LONGEST_SLEEP = 600.0
#: Milliseconds by which the last occurrence is in the future only if the leader's clock was set back.
AHEAD = 60_000
#: Maximum bytes of the puts in one multi.
TOGETHER_BYTES = 256 * 1024


class Scheduler:
    """Puts the messages of all jobs below the session's root, when they occur: ``async with Scheduler(session):``.

    Or run it with `run`, or together with listeners with `aiozkqueue.run`. Run one in several processes for high
    availability: each occurrence is put exactly once. It waits out lost connections and sessions.
    """

    def __init__(self, session: QueueSession) -> None:
        runtime = core_of(session)
        self._session = session
        self._zookeeper = runtime.zookeeper
        self._clock = runtime.clock
        self._paths = SchedulePaths(runtime.root)
        self._jobs: dict[str, tuple[JobRecord, int]] = {}
        self._due: dict[str, int] = {}
        """When to check each job again, milliseconds of ZooKeeper's time; no entry for a job that was just read."""
        self._changed: set[str] | None = None
        """Jobs to read again and to check at once; None: all."""
        self._outdated: set[str] = set()
        """Jobs to read again, and to check when they are due."""
        self._removals: Operation = Check(self._paths.base)
        """The check that no job has been removed since the jobs were read."""
        self._turn = asyncio.Lock()
        self._wake = asyncio.Event()
        self._stopped = False
        self._stopping: Timer | None = None
        """Ends the wait for the puts in flight after a stop."""
        self._scope: anyio.CancelScope | None = None
        self._background: Background | None = None
        self._messages = 0

    def __str__(self) -> str:
        return f"scheduler of {counted(len(self._jobs), 'job')}" if self._jobs else "scheduler"

    def _summary(self) -> str:
        """Return its figures, for the log of a worker."""
        return f"{counted(self._messages, 'message')} put"

    def stop(self) -> None:
        """Put nothing more, and finish the puts in flight. Idempotent.

        It ends at once if there is no connection, and after one session timeout at the latest.
        """
        self._stopped = True
        self._wake.set()
        if self._scope is not None and self._stopping is None:
            connected = self._zookeeper.state is State.CONNECTED
            limit = self._zookeeper.session_timeout if connected else 0.0
            self._stopping = self._clock.call_later(limit, self._scope.cancel)

    def abort(self) -> None:
        """Stop at once, without waiting. Idempotent."""
        self.stop()
        if self._scope is not None:
            self._scope.cancel()

    async def run(self) -> None:
        """Serve until stopped.

        Raises: AccessDeniedError, SessionClosedError, WrongLoopError: errors that waiting does not resolve.
            MissingExtraError: the extra ``schedule`` is not installed.
            RuntimeError: it is already running.
        """
        if self._scope is not None:
            msg = "the scheduler is already running"
            raise RuntimeError(msg)
        await load("* * * * *", "UTC")
        # A task cancelled by itself would end the session's other tasks with it; a scope ends this one alone.
        self._scope = anyio.CancelScope()
        try:
            with self._scope:
                await self._serve_jobs()
        finally:
            self._scope = None
            if self._stopping is not None:
                self._stopping.cancel()

    async def __aenter__(self) -> Self:
        """Run in the background while the body runs. If it dies, the body is cancelled, and its error raised."""
        self._background = Background(self)
        self._background.start(core_of(self._session))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._background is not None  # noqa: S101 - entered
        await self._background.leave(error)

    async def _serve_jobs(self) -> None:
        runtime = core_of(self._session)
        self._changed = None
        await ensure_folder(runtime, JOBS, self._paths.base)
        with readable(JOBS, self._paths.base):
            watch = await runtime.zookeeper.watch(self._paths.base, self._on_event, recursive=True)
        forget = runtime.zookeeper.on_state(self._state_changed)
        try:
            while not self._stopped:
                self._wake.clear()
                pause = await self._check()
                timer = runtime.clock.call_later(pause, self._wake.set)
                try:
                    await self._wake.wait()
                finally:
                    timer.cancel()
        finally:
            forget()
            watch.cancel()

    def _state_changed(self, state: State, _: int) -> None:
        if state is State.FAILED:  # no watch reports that
            self._wake.set()

    def _on_event(self, event: WatchEvent) -> None:
        if event == (EventKind.CHANGED, self._paths.base):
            return  # by a removal, which is reported itself
        if parent_of(event.path) != self._paths.base:
            self._changed = None
        elif self._changed is not None:
            self._changed.add(name_at(event.path))
        self._wake.set()

    async def _check(self) -> float:
        """Put the due messages; return the seconds until the next check."""
        runtime = core_of(self._session)
        # Before the names are taken: the watch has reported every removal that this check does not refuse.
        self._removals = await removals(runtime, self._paths)
        changed, self._changed = self._changed, set()
        outdated, self._outdated = self._outdated, set()
        with readable(JOBS, self._paths.base):
            read = await read_jobs(runtime, self._paths, None if changed is None else changed | outdated)
        now = await server_time(runtime, JOBS)
        for name in set(self._jobs) if changed is None else changed | outdated:
            self._jobs.pop(name, None)
            if changed is None or name in changed or name not in read:
                self._due.pop(name, None)
        self._jobs |= read
        due = {name: job for name, job in self._jobs.items() if self._due.get(name, now) <= now}
        pauses = await asyncio.gather(*(self._serve_isolated(name, *job, now) for name, job in due.items()))
        self._due |= {name: now + milliseconds_in(pause) for name, pause in zip(due, pauses, strict=True)}
        following = min(self._due.values(), default=now + milliseconds_in(LONGEST_SLEEP))
        return min(max(0.0, (following - now) / 1000), LONGEST_SLEEP)  # further away if the clock was set back

    async def _serve_isolated(self, name: str, record: JobRecord, version: int, now: int) -> float:
        """Serve one job as `_serve` does; an unforeseen error with it does not stop the others."""
        try:
            return await self._serve(name, record, version, now)
        except QueueError:
            raise
        except Exception:  # any: stored jobs may come from other versions, and the other jobs must continue
            core_of(self._session).check()  # the end of the session ends this
            fields = {"job": name, "queue": record.queue}
            log.exception("job %s cannot be used: remove it, or declare it again", name, extra=fields)
            self._forget(name)
            return AGAIN

    async def _serve(self, name: str, record: JobRecord, version: int, now: int) -> float:
        """Put the due messages of one job; return the seconds until it is due again."""
        if record.paused:
            return LONGEST_SLEEP
        # The times of thousands of jobs take seconds: the event loop runs other tasks in between.
        async with self._turn:
            await asyncio.sleep(0)
        try:
            cron = await load(record.cron, record.zone)
        except InvalidScheduleError as error:  # from a newer version, or with a zone that is not installed here
            left_alone(core_of(self._session), name, error)
            return LONGEST_SLEEP
        due = to_put(
            cron,
            last=record.last,
            now=now,
            missed=record.missed,
            tolerance=milliseconds_in(record.tolerance),
            limit=record.limit,
        )
        if due:
            return await self._put(name, record, version, due)
        if record.last - now > AHEAD:
            text = (
                "job %s: its occurrences up to %s are already decided, so nothing is put until then: the clock of "
                "ZooKeeper's leader was set back; to continue now, remove the job and declare it again"
            )
            log.warning(text, name, _date(record.last), extra={"job": name, "queue": record.queue})
        following = next(cron.after(record.last), None)
        if following is not None and following <= now:  # all that have passed are missed, and the job skips them
            [last] = cron.latest(record.last, now, 1)
            return await self._skip(name, replace(record, last=last), version)
        return LONGEST_SLEEP if following is None else min((following - now) / 1000 + 0.001, LONGEST_SLEEP)

    async def _put(self, name: str, record: JobRecord, version: int, due: list[int]) -> float:
        """Put the first of these, as many as fit into one multi, unless another scheduler is faster."""
        runtime = core_of(self._session)
        try:
            puts, decisions = _first_of(runtime, name, record, due)
            await make_ready(puts)
            if puts[0].state.snapshot.capacity is not None:  # the queue accepts no more at once
                puts = puts[: credits_of(puts[0].state.config.max_size or 1)]
            try:
                atomic_write, guard = await self._entered(name, record, version, puts, decisions)
            except QueueFullError:
                if len(puts) == 1:
                    raise
                puts = puts[:1]  # there may be capacity for some of them
                atomic_write, guard = await self._entered(name, record, version, puts, decisions)
            try:
                await runtime.settle(atomic_write)
            except NotCommittedError:
                if not guard.left:
                    raise
            else:
                self._messages += len(live_of(puts))
        except QueueError as error:
            runtime.check()  # the end of the session ends this
            fields = {"job": name, "queue": record.queue}
            log.warning("job %s: the message due at %s was not put: %s", name, _date(due[0]), error, extra=fields)
            self._forget(name)
            return AGAIN
        self._forget(name)
        return 0.0

    async def _entered(
        self, name: str, record: JobRecord, version: int, puts: Sequence[Put], decisions: Sequence[tuple[int, int]]
    ) -> tuple[AtomicWrite, ConditionalPart]:
        """Return the write of the puts and of their decision, with its guard, after acquiring capacity for them.

        Raises: as `enter_live`.
        """
        runtime = core_of(self._session)
        ran, last = decisions[len(puts) - 1]
        decided = replace(record, last=last, ran=ran)
        operations = [self._removals, SetData(self._paths.job(name), decided.encode(), version)]
        guard = ConditionalPart(Change(puts[0].state, operations))
        atomic_write = guarded(runtime.ids.next(), guard, puts)
        await enter_live(runtime, atomic_write, puts, AT_ONCE)
        return atomic_write, guard

    async def _skip(self, name: str, decided: JobRecord, version: int) -> float:
        """Record that the missed occurrences of a job are skipped: otherwise it would seem to have no scheduler."""
        runtime = core_of(self._session)
        self._forget(name)
        try:
            await replace_job(runtime, self._paths.job(name), decided, version, self._removals)
        except JobChangedError:
            return 0.0  # perhaps by another scheduler
        except QueueError as error:
            runtime.check()  # the end of the session ends this
            fields = {"job": name, "queue": decided.queue}
            log.warning("job %s: its missed occurrences were not skipped: %s", name, error, extra=fields)
            return AGAIN
        return 0.0

    def _forget(self, name: str) -> None:
        """Read a job again before anything else is done with it.

        It stays due when it was: otherwise each check for another job would repeat a put that has just failed.
        """
        self._outdated.add(name)


def _first_of(
    runtime: SessionCore, name: str, record: JobRecord, due: list[int]
) -> tuple[list[Put], list[tuple[int, int]]]:
    """Return the puts of the first of these, as many as fit into one multi.

    For each, also return its occurrence and the last occurrence that it decides.

    A multi creates a unique key only once. With ``unique="ignore"`` a put also decides the occurrences after it, which
    are left out because it holds the key. Otherwise the second put of the key waits for a later multi.
    """
    puts: list[Put] = []
    decisions: list[tuple[int, int]] = []
    holders: dict[tuple[str, str], str] = {}
    weight = 0
    for occurrence in due:
        put = prepare(runtime, record.queue, record.body, occurrence_options(name, record, occurrence))
        try:
            left_out = earlier_holder(holders, put) is not None
        except DuplicateKeyError:
            break
        if left_out:
            decisions[-1] = decisions[-1][0], occurrence
            continue
        weight += weigh_put(put)
        if puts and weight > min(TOGETHER_BYTES, runtime.safe_size):
            break
        puts.append(put)
        decisions.append((occurrence, occurrence))
    return puts, decisions


def _date(moment: int) -> str:
    return moment_at(moment).isoformat()
