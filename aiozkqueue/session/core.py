"""The core of one session, shared by all objects that users hold."""

from __future__ import annotations

import asyncio
import enum
import logging
import os
import socket
from contextlib import AsyncExitStack, suppress
from functools import partial
from random import Random
from threading import get_ident
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from aiozkqueue.errors import (
    ConfigConflictError,
    InvalidOptionError,
    OutcomeUnknownError,
    QueueError,
    SessionClosedError,
    WrongLoopError,
)
from aiozkqueue.foreign.queue_state import ForeignQueueState
from aiozkqueue.layout import ClientPaths, IdSource
from aiozkqueue.layout.processes import ProcessInfo
from aiozkqueue.operations.janitor import Janitor
from aiozkqueue.operations.ttl import ExpiredKeys
from aiozkqueue.queue.claim.claimer import ClaimCounts
from aiozkqueue.queue.claim.dispatcher import ClaimDispatcher
from aiozkqueue.queue.claim.services import ClaimServices
from aiozkqueue.queue.commit.create_items import CreateItems, makes_bundles
from aiozkqueue.queue.commit.failures import CLOSED, unknown
from aiozkqueue.queue.commit.group_commit import GroupCommitter
from aiozkqueue.queue.commit.handle import QueueHandle
from aiozkqueue.queue.commit.history import HistoryHook
from aiozkqueue.queue.commit.meter import Meter
from aiozkqueue.queue.commit.multi import Contribution
from aiozkqueue.queue.commit.write import AtomicWrite
from aiozkqueue.queue.outcome import Outcome
from aiozkqueue.queue.put.affinity import node_hash
from aiozkqueue.queue.put.capacity import CapacityGate
from aiozkqueue.queue.put.queue_defaults import QueueDefaults
from aiozkqueue.queue.state.claim import SessionBudget
from aiozkqueue.queue.state.queue_state import QueueState, SessionLinks
from aiozkqueue.replies.calls import Calls
from aiozkqueue.replies.given_up import GivenUpAnswers
from aiozkqueue.runtime.clock import EqualDeadlines, ServerClock
from aiozkqueue.runtime.deadline import AT_ONCE
from aiozkqueue.runtime.sizes import message_limit
from aiozkqueue.runtime.tasks import TaskOwner, wait_settled
from aiozkqueue.zookeeper import CallLimit, State

from .lane_ends import LaneEnds
from .late_writes import LateWrite, not_sent
from .left_open import LeftOpen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiozkqueue.dialects import Dialect
    from aiozkqueue.layout import Condition
    from aiozkqueue.queue.claim.waiters import Waiter
    from aiozkqueue.queue.commit.put import Put
    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.queue.state.snapshot import QueueFeature
    from aiozkqueue.runtime.clock import Clock
    from aiozkqueue.zookeeper import ZooKeeper

    from .tracing import Tracing

log: Final = logging.getLogger(__name__)

#: Outcomes of past transactions that `SessionCore.outcome` remembers, at least.
OUTCOMES_KEPT = 10_000
#: Filters whose dispatchers a session keeps while no taker uses them.
MOST_FILTERS = 64
#: Queues whose dispatchers a session keeps while no taker uses them. One takes about 20 KB, and has a task.
MOST_QUEUES = 1000
#: Bytes of the largest request that are reserved for the other operations of a transaction with puts.
PUTS_MARGIN = 32 * 1024
#: The exact size is not computed for requests whose estimate is below this share of the server's limit.
SAFE_SHARE = 0.5


#: Seconds for which a call waits for a server that does not answer, by default.
OPERATION_TIMEOUT: Final = 30.0
#: Minimum of `SessionCore.grace`, seconds: a server that was away, or a loop that was blocked, may be about to answer.
SHORTEST_GRACE: Final = 1.0


class _Process:
    """Identifies the process: a forked child gets another object. A system call for the pid would be slower."""

    current: ClassVar[object] = object()

    @classmethod
    def forked(cls) -> None:
        """Record that this is a forked child."""
        cls.current = object()


if hasattr(os, "register_at_fork"):  # no forked children without fork
    os.register_at_fork(after_in_child=_Process.forked)


def this_process(name: str = "") -> ProcessInfo:
    """Return the description of a session of this process, with the name that its program gave it."""
    return ProcessInfo(socket.gethostname(), os.getpid(), name=name)


class _Life(enum.Enum):
    """Whether a session can be used. A session that has failed can still be closed."""

    OPEN = enum.auto()
    FAILED = enum.auto()
    CLOSED = enum.auto()


# Constants, because looking up an enum member takes as long as the comparison, and this runs for every call.
_OPEN, _FAILED, _CLOSED = _Life.OPEN, _Life.FAILED, _Life.CLOSED


class Undecided(Protocol):
    """A transaction, a delivery or another write, whose outcome may be asked for."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    @property
    def outcome(self) -> Outcome:
        """How it has ended."""
        ...

    async def decision(self, limit: float | None) -> None:
        """Wait until it is decided, for up to ``limit`` seconds."""
        ...


def _settings(dialect: Dialect | None) -> str:
    """Describe the layout of a queue of another program."""
    settings = {} if dialect is None else dialect.settings()
    return ", ".join(f"{name}={value!r}" for name, value in settings.items() if value is not None)


def _reported(_: AtomicWrite) -> None:
    """Mark a failure as one that a caller gets, so that it is not logged."""


class SessionCore:
    """The client, clocks, ids and committer of a session and, for each queue in use, its state and dispatcher."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        root: str,
        clock: Clock,
        ids: IdSource | None = None,
        about: bytes | None = None,
        *,
        janitor: bool = False,
        node: str | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        zookeeper = clock.view(zookeeper)
        self.zookeeper = zookeeper
        self.tracing = tracing
        """The tracer of its messages, if there is one."""
        self.meter: Meter | None = None
        """The counters, once `measure` has been called."""
        self.root = root
        self.clock = clock
        self.ids: IdSource = ids or IdSource()
        #: Spreads load and retries; all random values of a session derive from its ids, so that a simulation can repeat
        #: them.
        self.random: Random = Random(self.ids.client)  # noqa: S311 - not for security
        self.about: bytes = this_process().encode() if about is None else about
        self.node: str = node_hash(ProcessInfo.decode(self.about).host if node is None else node)
        """The hash of the node's name, by default the host's."""
        self.server_clock: ServerClock = ServerClock(clock, zookeeper)
        self.tasks: TaskOwner = TaskOwner("aiozkqueue session", self._failed)
        self.committer: GroupCommitter = GroupCommitter(
            zookeeper, ClientPaths(root, self.ids.client), self.tasks, self.server_clock, ids=self.ids, about=self.about
        )
        self.calls: Calls = Calls(zookeeper, ClientPaths(root, self.ids.client), self.tasks, clock, self.about)
        """The calls that wait for their replies."""
        self.limit_calls(OPERATION_TIMEOUT)
        self.left_open: LeftOpen = LeftOpen()
        """The deliveries that loops have left to the program to settle."""
        self.handling: dict[object, tuple[str, Mapping[Claim, object]]] = {}
        """The queue of each running listener, and the claims whose handlers run, the oldest first."""
        self._undecided: dict[str, Undecided] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._older_outcomes: dict[str, Outcome] = {}
        self._budgets = SessionBudget()
        self._states: dict[str, QueueState] = {}
        self._gates: list[CapacityGate] = []
        self._dispatchers: dict[tuple[str, Condition | None], ClaimDispatcher] = {}
        self._retired: dict[str, ClaimCounts] = {}  # the counts of dispatchers that have ended, by queue
        self._janitor = Janitor(self) if janitor else None
        lane_ends, expired_keys = LaneEnds(clock, self.tasks), ExpiredKeys(self)
        self._links = SessionLinks(
            self.server_clock, self.random, self._features, lane_ends.note, expired_keys.free, GivenUpAnswers(root)
        )
        self._loop = asyncio.get_running_loop()
        self._thread_id = get_ident()
        self._process = _Process.current
        self._life = _OPEN
        self._forget_state = zookeeper.on_state(self._state_changed)
        self._measure_limits()

    def _measure_limits(self) -> None:
        """Derive the limits of messages and puts from the server's, which each connection may change."""
        limit = self.zookeeper.max_request
        self.max_message: int = message_limit(limit)
        """The largest item that can be put and still be dead-lettered, bytes."""
        self.max_puts: int = max(limit - PUTS_MARGIN, limit // 2)
        """The largest total size of all puts of one transaction, bytes."""
        self.safe_size: float = SAFE_SHARE * limit
        """The largest estimate of a write that certainly fits into one request, bytes."""

    @property
    def grace(self) -> float:
        """How long a caller waits for an operation that no deadline limits, such as a rollback, seconds.

        The ZooKeeper session ends if no server answers for this time: one session timeout, less the
        time without an answer so far, because several such waits follow each other when a program stops.
        """
        timeout = self.zookeeper.session_timeout
        silent = self._loop.time() - self.zookeeper.last_received
        return max(timeout - silent, min(timeout, SHORTEST_GRACE))

    @property
    def closed(self) -> bool:
        """Whether `close` has begun."""
        return self._life is _CLOSED

    async def start(self) -> None:
        """Start the session's own tasks."""
        await self.tasks.start()
        self.committer.start()
        if self._janitor is not None:
            self.tasks.spawn(self._janitor.run, name="janitor")

    @property
    def inherited(self) -> bool:
        """Whether this process was forked from the one that opened the session."""
        return _Process.current is not self._process

    def check(self) -> None:
        """Check that the session is open, and used on its own event loop and in its own process.

        Raises:
            SessionClosedError: the session has been closed, or has failed.
            WrongLoopError: another event loop runs here, or none, or this is a forked child.
        """
        # Asking for the running loop takes a system call. If our loop runs, and this is its thread, it is the running
        # loop.
        if (
            self._life is _OPEN
            and _Process.current is self._process
            and get_ident() == self._thread_id
            and self._loop.is_running()
        ):
            return
        if self._life is _CLOSED:
            raise SessionClosedError(f"{CLOSED}; open another with aiozkqueue.connect()")
        if self.tasks.failure is not None:
            msg = f"the session has failed: {self.tasks.failure!r}"
            raise SessionClosedError(msg) from self.tasks.failure
        if self.inherited:
            msg = (
                "this process was forked from the one that opened the session; open one here with aiozkqueue.connect()"
            )
            raise WrongLoopError(msg)
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:  # another thread, or code outside the loop
            here = None
        if here is not self._loop:
            msg = (
                "the session does not belong to the event loop that runs here, if any; use it on its own loop, or "
                "open another here with aiozkqueue.connect()"
            )
            raise WrongLoopError(msg)

    def queue_state(self, name: str) -> QueueState:
        """Return the session's state of a queue. Raises: InvalidNameError."""
        try:
            state = self._states.get(name)
        except TypeError:  # not a str, and not hashable: refused below
            state = None
        if state is None:
            state = self._add(QueueState(self.zookeeper, self.root, name, self._links))
        return state

    def handle(self, name: str) -> QueueHandle[SessionCore]:
        """Return the handle of a queue. Raises: InvalidNameError."""
        return QueueHandle(self, self.queue_state(name))

    def foreign(self, dialect: Dialect) -> QueueState:
        """Return the session's state of another program's queue.

        Its name is its path, which never equals the name of one of our queues.

        Raises:
            ConfigConflictError: this session uses it with another layout.
        """
        state = self._states.get(dialect.path)
        if state is None:
            return self._add(ForeignQueueState(self.zookeeper, self.root, dialect, self._links))
        if state.dialect != dialect:
            msg = (
                f"queue {dialect.path!r} is already used in this session with {_settings(state.dialect)}, not with "
                f"{_settings(dialect)}; use one of them, or another session"
            )
            raise ConfigConflictError(msg)
        return state

    def _features(self, state: QueueState) -> list[QueueFeature]:
        """Return the features of a queue that depend on its configuration."""
        gate = CapacityGate(
            state,
            self.zookeeper,
            client=self.ids.client,
            clock=self.clock,
            tasks=self.tasks,
            budgets=self._budgets,
        )
        self._gates.append(gate)
        defaults = QueueDefaults(state, self.server_clock, self.node)
        return [gate, defaults, HistoryHook(state, self.zookeeper, client=self.ids.client, about=self.about)]

    def _add(self, state: QueueState) -> QueueState:
        self._states[state.name] = state
        if self._janitor is not None:
            state.on_configured(partial(self._janitor.follow, state))
        return state

    def measure(self) -> Meter:
        """Start counting, if it has not started yet; return the counters."""
        if self.meter is None:
            self.meter = self.committer.meter = Meter(self.clock.monotonic)
        return self.meter

    def queues_used(self) -> list[str]:
        """Return the names of our own queues that this session has used."""
        return [name for name, state in self._states.items() if state.dialect is None]

    def queues_opened(self) -> list[str]:
        """Return the names of all queues that this session has used, or the paths of other programs' queues.

        It may be called from any thread.
        """
        return list(self._states)

    def oldest_handlers(self) -> dict[str, float]:
        """Return how long ago the oldest message of each queue was delivered whose handler runs, seconds.

        A message that was delivered before `measure` does not count. It may be called from any thread.
        """
        now, ages = self.clock.monotonic(), dict[str, float]()
        for queue, claims in list(self.handling.values()):
            began = next((claim.delivered_at for claim in list(claims) if claim.delivered_at is not None), None)
            if began is not None:
                ages[queue] = max(now - began, ages.get(queue, 0.0))
        return ages

    def claim_counts(self) -> list[tuple[str, ClaimCounts]]:
        """Return the claim counters of each queue and filter."""
        used = [(name, dispatcher.counts) for (name, _), dispatcher in list(self._dispatchers.items())]
        return [*used, *self._retired.items()]

    def dispatcher(self, state: QueueState, condition: Condition | None = None) -> ClaimDispatcher:
        """Return the dispatcher of a queue, for takers with a filter or without.

        Raises: InvalidOptionError: a filter on a queue whose messages have no tags.
        """
        dispatcher = self._dispatchers.get((state.name, condition))
        if dispatcher is None:
            if condition is not None and state.dialect is not None:
                msg = f"queue {state.name!r}: messages of {state.dialect.title()} have no tags; use no filters"
                raise InvalidOptionError(msg)
            self._retire_dispatchers(filtered=condition is not None)
            services = ClaimServices(
                state,
                self.zookeeper,
                self.committer,
                self.tasks,
                self.clock,
                self.server_clock,
                self.ids,
                self.random,
                self._budgets,
                self.about,
            )
            dispatcher = ClaimDispatcher(services, condition)
            self._dispatchers[state.name, condition] = dispatcher
            self.tasks.spawn(dispatcher.run, name=f"claim dispatcher of {state.name}")
        return dispatcher

    def _retire_dispatchers(self, *, filtered: bool) -> None:
        """End the oldest dispatchers with filters, or without, that no taker uses, if there are too many."""
        alike = [key for key in self._dispatchers if (key[1] is not None) == filtered]
        excess = len(alike) - (MOST_FILTERS if filtered else MOST_QUEUES) + 1
        for key in alike if excess > 0 else ():
            if excess > 0 and self._dispatchers[key].retire():
                self._retired.setdefault(key[0], ClaimCounts()).add(self._dispatchers.pop(key).counts)
                excess -= 1

    def limit(self, what: str) -> CallLimit:
        """Return the limit of one call; ``what`` is its subject in errors. Raises: as `check`."""
        self.check()
        return CallLimit(self.zookeeper, self.operation_timeout, what)

    def limit_calls(self, seconds: float) -> None:
        """Let calls wait this long for a server that does not answer."""
        loop = self.committer.loop
        self.operation_timeout: float = seconds
        """Seconds for which a call waits for a server that does not answer."""
        self._deadlines: EqualDeadlines[AtomicWrite] = EqualDeadlines(loop, seconds, AtomicWrite.stop_waiting)
        self.searches: EqualDeadlines[Waiter] = EqualDeadlines(loop, seconds, self._end_search)
        """The takers that search a queue once: they wait for a server, but for no message."""

    def _end_search(self, waiter: Waiter) -> None:
        """End the search of a taker, unless a server has answered in the meantime."""
        loop = self.committer.loop
        left = self.zookeeper.last_answered + self.operation_timeout - loop.time()
        if left > 0:
            loop.call_later(left, self._end_search, waiter)
        elif not waiter.future.done():
            waiter.late = True
            waiter.future.cancel()

    async def settle_put(self, put: Put) -> None:
        """Settle a put without additions within `operation_timeout`, at less cost than `settle` with a limit.

        Raises: as `settle`.
        """
        if makes_bundles(put.state):
            atomic_write = AtomicWrite(put.id)
            self.committer.submit(atomic_write, Contribution(None, put, AT_ONCE))
        else:
            atomic_write = AtomicWrite(put.id, CreateItems((put,)))
            self.committer.submit(atomic_write)
        self._deadlines.add(atomic_write)
        try:
            await atomic_write.wait()
        finally:
            self._deadlines.remove(atomic_write)
        if not atomic_write.settled:
            raise self._late(atomic_write, self.operation_timeout, put.state.name)
        if atomic_write.error is not None:
            raise atomic_write.error

    async def settle(self, atomic_write: AtomicWrite, limit: float | None = None, *, queue: str | None = None) -> None:
        """Submit an atomic write and wait for its result, for up to ``limit`` seconds; see `AtomicWrite.wait`.

        ``queue`` is the queue that the errors about the limit name.

        Raises: the error of the write; SessionClosedError; NotCommittedError: it was not sent in time;
        OutcomeUnknownError: it was not answered in time.
        """
        self.committer.submit(atomic_write)
        await atomic_write.wait(limit=limit)
        if not atomic_write.settled:
            raise self._late(atomic_write, limit, queue)
        atomic_write.raise_error()

    def _late(self, atomic_write: AtomicWrite, limit: float | None, queue: str | None) -> QueueError:
        """Withdraw a write that took too long, if it was not sent; return the error."""
        what = f"write {atomic_write.transaction_id}" + ("" if queue is None else f" to queue {queue!r}")
        if not self.committer.withdraw(atomic_write):
            late = LateWrite(atomic_write)
            self.remember_undecided(late)
            atomic_write.watch(partial(self._settled_late, late))
            return unknown(atomic_write.transaction_id, f"no answer within {limit:g} s", what)
        error = not_sent(what, limit)
        atomic_write.watch(_reported)
        atomic_write.fail(error)
        return error

    def _settled_late(self, late: LateWrite, atomic_write: AtomicWrite) -> None:
        self.remember_outcome(late, late.outcome)
        atomic_write.log_failure()

    async def learn_time(self) -> None:
        """Learn ZooKeeper's time by a write, unless it is known within bounds. Raises: as `settle`."""
        while not self.server_clock.bounded:
            with suppress(OutcomeUnknownError):  # without puts, only the commit slot is written
                await self.settle(AtomicWrite(self.ids.next(), CreateItems(())))

    def remember_undecided(self, work: Undecided) -> None:
        """Remember work whose outcome may be asked for: an open transaction, a delivery in commit, or a late write."""
        self._undecided[work.id] = work

    def remember_outcome(self, work: Undecided, outcome: Outcome) -> None:
        """Remember the outcome of work."""
        self._undecided.pop(work.id, None)
        self._outcomes[work.id] = outcome
        if len(self._outcomes) >= OUTCOMES_KEPT:  # removing one at a time would be slower
            self._older_outcomes, self._outcomes = self._outcomes, {}

    async def outcome(self, transaction_id: str, limit: float | None) -> Outcome:
        """Return the outcome of a transaction, waiting for a commit in flight."""
        work = self._undecided.get(transaction_id)
        if work is not None:
            await work.decision(limit)
            return work.outcome
        older = self._older_outcomes.get(transaction_id, Outcome.UNKNOWN)
        return self._outcomes.get(transaction_id, older)

    async def close(self, *, awaited: bool = False) -> None:
        """Settle pending work within `grace`, then end the ZooKeeper session and its locks.

        A forked child does nothing: the ZooKeeper session is its parent's. With ``awaited``, a task of the session may
        wait for the caller: if the caller is cancelled, it ends at once, and the rest continues in the background.

        Raises: RuntimeError: a task of the session calls it, which would wait for itself.
        """
        if self.closed or self.inherited:
            return
        if self.tasks.runs_current_task():
            msg = "a handler cannot close its own session; stop the listener, and close the session after its block"
            raise RuntimeError(msg)
        self._life = _CLOSED
        self.left_open.report()
        for dispatcher in self._dispatchers.values():
            dispatcher.close()
        self._close_gates(SessionClosedError(CLOSED))
        self.calls.close(SessionClosedError(CLOSED))
        self._forget_state()
        steps = AsyncExitStack()  # each runs whatever happens to those before it; the last one is pushed first
        steps.push_async_callback(self._close_client)
        steps.push_async_callback(self.tasks.close)
        steps.callback(self.committer.close)
        drained = asyncio.ensure_future(self.committer.drain())
        steps.callback(drained.cancel)
        steps.push_async_callback(wait_settled, drained, limit=self.grace)
        if not awaited:
            await steps.aclose()
            return
        # Closing cancels the tasks of the session. The cancelled task cancels the caller, if it waits for the caller.
        await asyncio.shield(asyncio.ensure_future(steps.aclose()))

    async def _close_client(self) -> None:
        """End the ZooKeeper session, even if the caller is cancelled: an open client would keep the locks forever."""
        await wait_settled(asyncio.ensure_future(self.zookeeper.close()))

    def _state_changed(self, state: State, generation: int) -> None:
        if state is State.CONNECTED:
            self.server_clock.reconnected()
            self._measure_limits()
        if self.meter is not None:
            self.meter.state_changed(state)
        for dispatcher in self._dispatchers.values():
            dispatcher.state_changed(state, generation)
        if state is State.FAILED:
            self.calls.client_failed()
            for gate in self._gates:
                gate.release(0)  # wakes its waiting puts, which then fail

    def _failed(self, failure: BaseException) -> None:
        """Fail all waiters: a task of the session has failed, which is a defect.

        The ZooKeeper session ends too. With a client that only sends heartbeats, its locks would stay forever.
        """
        if self._life is _OPEN:
            self._life = _FAILED
        error = QueueError(f"the session has failed: {failure!r}; open another")
        error.__cause__ = failure
        for dispatcher in self._dispatchers.values():
            dispatcher.close()
        self._close_gates(error)
        self.calls.close(error)
        self.committer.close()
        self.zookeeper.kill()

    def _close_gates(self, error: QueueError) -> None:
        for gate in self._gates:  # also for a queue whose size limit was removed: puts may still wait there
            gate.close(error)
