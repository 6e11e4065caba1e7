"""Simultaneous commits and puts of many tasks end as in a simple model of each call, whatever goes wrong."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pytest

import aiozkqueue as zq
from aiozkqueue.queue.commit.group_commit import SLOTS
from aiozkqueue.queue.outcome import Outcome
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import run_virtual
from aiozkqueue.testing.simulator import Fault
from aiozkqueue.testing.simulator.cluster import make_cluster
from aiozkqueue.testing.simulator.requests import Kind
from aiozkqueue.zookeeper import (
    AuthFailedError,
    Create,
    Delete,
    MultiError,
    NoAuthError,
    NotEmptyError,
    RequestTooLargeError,
    ZooKeeperError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aiozkqueue.testing.simulator.cluster import Cluster
    from aiozkqueue.zookeeper import Operation

pytestmark = pytest.mark.timeout(120)

#: Messages in the queue, more than the calls take.
STORED = 150
#: Seconds after which a call without an answer ends. A ZooKeeper session lasts longer.
PATIENCE = 2.0
SESSION_TIMEOUT = 4.0
#: Seconds for the way from a client to a server, or back.
NETWORK = 0.002
#: Path patterns of the operations that a server may refuse. The commit slot is part of each multi.
REFUSED: Final[dict[str, tuple[str, Callable[[str], ZooKeeperError]]]] = {
    "a put denied": ("/results/items/", NoAuthError),
    "a single put denied": ("/results/items/item-", NoAuthError),
    "an end denied": ("/jobs/meta/bundle-", NoAuthError),
    "a count denied": ("/results/bundled/", NoAuthError),
    "the slot denied": ("/slot-", NoAuthError),
    "the slot damaged": ("/slot-", NotEmptyError),
    "unknown user": ("", AuthFailedError),
    "too large": ("", RequestTooLargeError),
}
#: Changes of the configuration of both queues.
CHANGES: Final = {
    "other lanes": zq.QueueConfig(bundle=2, shards=3),
    "history": zq.QueueConfig(bundle=64, history=zq.History()),
    "no bundles": zq.QueueConfig(bundle=1),
    "a size": zq.QueueConfig(max_size=5),
}
#: The kinds of trouble for the first requests; each run has one. "Known" ones happen after the calls begin and before
#: they are sent.
TROUBLE: Final = (
    "none",
    *REFUSED,
    *CHANGES,
    "known history",
    "known no bundles",
    "released",
    "expired",
    "silence",
    "closed",
    "slot collected",
    *(fault.name for fault in Fault),
)


@dataclass
class Call:
    """A commit or a put, with its reported outcome."""

    taken: bytes | None = None
    put: bytes | None = None
    outcome: Outcome = Outcome.UNKNOWN
    error: BaseException | None = None
    timeout: float | None = None
    """The time limit of a commit. Without one, it waits for capacity."""


@dataclass
class Run:
    """A session whose tasks commit simultaneously, and the trouble."""

    random: Random
    trouble: str
    cluster: Cluster
    session: zq.QueueSession
    other: zq.QueueSession
    calls: list[Call] = field(default_factory=list)
    holding: int = 0
    left: int = 1
    denied: set[bytes] = field(default_factory=set)
    closing: asyncio.Task[None] | None = None
    taken: Counter[bytes] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.all_hold, self.go, self.known = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.core, self.results = core_of(self.session), self.session.queue("results")
        self.number = self.random.choice([12, 140])
        self.takers = self.random.choice([0, self.number // 4, self.number // 2])
        self.sizes = self.random.choice([(0, 10), (0, 10, 3000)])  # a few small puts are never put in bundles
        self.haste = self.random.choice([0, 0, 0.1, 0.5])  # the share of the calls with a limit

    async def take_and_commit(self, call: Call) -> None:
        """Take a message, and commit together with the other calls, with or without a result."""
        async with self.session.transaction(autocommit=False) as tx:
            message = await tx.take(self.session.queue("jobs"), timeout=10)
            assert message is not None
            if call.put is not None:
                tx.put(self.results, call.put)
            self.holding += 1
            if self.holding == self.takers:
                self.all_hold.set()
            await self.go.wait()
            call.taken = message.value
            call.timeout = self.limit(0.0005, 0.01, 0.5)
            await self.end(call, partial(tx.commit, timeout=call.timeout))
            if tx.outcome is Outcome.OPEN:  # the call was cancelled before it was sent
                await tx.rollback()
            if self.trouble == "closed":
                call.outcome = tx.outcome
                return
            known = await self.session.outcome(tx.id, timeout=10 * SESSION_TIMEOUT)
            if call.outcome is not Outcome.UNKNOWN:
                assert known is call.outcome, call
            call.outcome = known

    async def put(self, call: Call) -> None:
        """Put a message together with the others."""
        assert call.put is not None
        await self.go.wait()
        await self.end(call, partial(self.results.put, call.put))

    async def end(self, call: Call, act: Callable[[], Awaitable[object]]) -> None:
        """Await a call, which may be cancelled, and record its outcome."""
        try:
            async with asyncio.timeout(self.limit(0, 0.0005, 0.01)):
                await act()
        except (TimeoutError, zq.OutcomeUnknownError):
            call.outcome = Outcome.UNKNOWN
        except zq.QueueError as error:
            call.outcome, call.error = Outcome.ROLLED_BACK, error
        else:
            call.outcome = Outcome.COMMITTED

    def limit(self, *seconds: float) -> float | None:
        """Return one of these limits, or None."""
        return self.random.choice(seconds) if self.random.random() < self.haste else None

    async def make_trouble(self) -> None:
        """Start the trouble."""
        ensemble, zookeeper = self.cluster.ensemble, self.core.zookeeper
        if self.trouble in Fault.__members__:
            ensemble.judge = lambda connection, request: (
                Fault[self.trouble] if request.kind is Kind.MULTI and self.must_fail(connection.client.name) else None
            )
        elif self.trouble in CHANGES:
            for name in ("jobs", "results") if self.trouble == "history" else ("results",):
                await self.other.queue(name).configure(CHANGES[self.trouble])
        elif self.trouble == "released":
            await self.other.queue("jobs").admin.release_claims()
        elif self.trouble != "none":
            zookeeper.multi = partial(self.multi, zookeeper.multi)  # type: ignore[method-assign] # the next requests

    def must_fail(self, client: str) -> bool:
        """Whether a request of a client is to fail now."""
        self.left -= client == "struck"
        return client == "struck" and self.left >= 0

    def multi(self, send: Callable[..., Any], operations: Sequence[Operation], **options: Any) -> Awaitable[Any]:
        """Send a multi or refuse it, and start the trouble while it is sent."""
        path, error = REFUSED.get(self.trouble, ("/slot-", None))
        indexes = [index for index, each in enumerate(operations) if path in each.path]
        if not indexes or "/slot-" not in operations[0].path:
            return send(operations, **options)  # type: ignore[no-any-return] # the type of the client's method
        if self.trouble.startswith("known"):
            return self.answer_when_known(send(operations, **options))
        self.left -= 1
        if self.left < 0:
            return send(operations, **options)  # type: ignore[no-any-return] # the type of the client's method
        if error is not None:
            return self.refuse(operations, self.random.choice(indexes), error)
        ensemble, loop = self.cluster.ensemble, asyncio.get_running_loop()
        if self.trouble == "expired":
            self.cluster.expire("struck")
        elif self.trouble == "silence":
            ensemble.judge = lambda connection, _: Fault.SILENCE if connection.client.name == "struck" else None
            loop.call_later(PATIENCE + 1, setattr, ensemble, "judge", lambda *_: None)
        elif self.trouble == "closed":
            if self.random.random() < 0.5:
                ensemble.judge = lambda connection, _: Fault.SILENCE if connection.client.name == "struck" else None
            self.closing = loop.create_task(self.core.close())
        elif self.trouble == "slot collected":
            self.left = 1
            ensemble.judge = lambda connection, _: Fault.LOST_AFTER if self.must_fail(connection.client.name) else None
            self.collection = loop.create_task(self.collect(operations[0].path))
        return send(operations, **options)  # type: ignore[no-any-return] # the type of the client's method

    def refuse(
        self, operations: Sequence[Operation], index: int, error: Callable[[str], ZooKeeperError]
    ) -> asyncio.Future[Any]:
        """Refuse a multi because of one of its operations, or as a whole."""
        refused, operation = asyncio.get_running_loop().create_future(), operations[index]
        cause = error(operation.path)
        whole = isinstance(cause, AuthFailedError | RequestTooLargeError)
        refused.set_exception(cause if whole else MultiError(index, cause))
        if isinstance(operation, Create):
            self.denied |= {call.put for call in self.calls if call.put and call.put in operation.data}
        return refused

    async def answer_when_known(self, answer: Awaitable[Any]) -> Any:
        """Await the answer to a multi, and pass it on when the session knows the new configuration."""
        results = await answer
        await self.known.wait()
        return results

    async def collect(self, slot: str) -> None:
        """Remove the slot of an applied multi, as clean-up removes the slots of dead clients."""
        await asyncio.sleep(2 * NETWORK)
        await core_of(self.other).zookeeper.multi([Delete(slot)])

    async def take_results(self) -> None:
        """Make room in the queue of the results."""
        while True:
            await asyncio.sleep(0.5)
            async with self.other.transaction() as tx:
                for message in await tx.take_many(self.other.queue("results"), 10, timeout=None):
                    self.taken[message.value] += 1

    def begin(self, number: int, *, taker: bool) -> asyncio.Task[None]:
        """Begin a call, which is sent together with the others."""
        body = b"<%d>" % number + b"x" * self.random.choice(self.sizes)
        call = Call(put=body if not taker or number % 2 else None)
        self.calls.append(call)
        return asyncio.create_task(self.take_and_commit(call) if taker else self.put(call))

    async def main(self) -> None:
        """Make all calls simultaneously."""
        tasks = [self.begin(number, taker=number < self.takers) for number in range(self.number)]
        if self.takers:
            await self.all_hold.wait()
        await self.make_trouble()
        if self.trouble.startswith("known"):
            for number in range(SLOTS):  # each occupies a slot, so that the other calls wait
                body = b"[%d]" % number
                first = Call(put=body)
                self.calls.append(first)
                tasks.append(asyncio.create_task(self.end(first, partial(self.results.put, body))))
                await asyncio.sleep(0.1)
        consumer = asyncio.create_task(self.take_results()) if self.trouble == "a size" else None
        self.go.set()
        if self.trouble.startswith("known"):
            await asyncio.sleep(0)
            for name in ("jobs", "results") if "history" in self.trouble else ("results",):
                await self.session.queue(name).configure(CHANGES[self.trouble.removeprefix("known ")])
            self.known.set()
        await asyncio.gather(*tasks)
        if self.closing is not None:
            await self.closing
        async with asyncio.timeout(10 * SESSION_TIMEOUT):
            await self.core.committer.drain()
        assert not self.core.committer._unsettled
        assert self.core.tasks.failure is None
        if consumer is not None:
            consumer.cancel()
            await asyncio.wait([consumer])

    def check(self, left: Counter[bytes], results: Counter[bytes]) -> None:
        """Compare the stored data with the outcomes that the calls have reported."""
        results += self.taken
        expected = {b"%d" % number for number in range(STORED)}
        for call in self.calls:
            taken, put = left[call.taken or b""], results[call.put or b""]
            if call.outcome is Outcome.COMMITTED:
                assert (taken, put) == (0, call.put is not None), call
            elif call.outcome is Outcome.ROLLED_BACK:
                assert (taken, put) == (call.taken is not None, 0), call
            elif call.taken is not None and call.put is not None:
                assert taken + put == 1, call
            if self.trouble.endswith("put denied") and (call.error or call.outcome is Outcome.COMMITTED):
                assert isinstance(call.error, zq.AccessDeniedError) == (call.put in self.denied), call
            if call.taken is not None and isinstance(call.error, zq.QueueFullError):
                assert call.timeout is not None, call
            expected -= {call.taken} if not taken else set()
        assert left == Counter(expected)
        assert max(results.values(), default=1) == 1

    def check_figures(self) -> None:
        """Compare the metrics with the outcomes."""
        assert self.core.meter is not None
        known = Counter(call.outcome for call in self.calls)
        if not known[Outcome.UNKNOWN]:
            committed = [call for call in self.calls if call.outcome is Outcome.COMMITTED]
            assert self.core.meter.of("results").put == sum(call.put is not None for call in committed)
            assert self.core.meter.of("jobs").consumed == sum(call.taken is not None for call in committed)
            assert self.core.meter.groups.total >= len(committed)


async def drained(queue: zq.Queue[bytes], session: zq.QueueSession) -> Counter[bytes]:
    values = Counter[bytes]()
    while True:
        async with session.transaction() as tx:
            messages = await tx.take_many(queue, 40, timeout=10 * SESSION_TIMEOUT)
            values.update(message.value for message in messages)
            if not messages:
                return values


async def history(trouble: str, seed: int) -> None:
    cluster = make_cluster(seed=seed)
    cluster.ensemble.tick = 0.1
    random = Random(f"{trouble} {seed}")
    cluster.ensemble.delays.network = lambda: NETWORK
    async with cluster.connect(session_timeout=SESSION_TIMEOUT) as other:
        for name in ("jobs", "results"):
            await other.queue(name).configure(zq.QueueConfig(bundle=64, shards=random.choice([None, 2])))
            await other.queue(name).put_many([b"%d" % number for number in range(STORED)])
            await asyncio.sleep(1)  # the first of many puts allows bundles
            await other.queue(name).purge()
        await other.queue("jobs").put_many([b"%d" % number for number in range(STORED)])
        async with cluster.connect(session_timeout=SESSION_TIMEOUT, name="struck") as session:
            core_of(session).limit_calls(PATIENCE)
            core_of(session).measure()
            if random.random() < 0.5:
                await core_of(session).learn_time()  # the first slot is ready
            await core_of(session).queue_state("results").open()  # otherwise each put opens the queue first
            run = Run(random, trouble, cluster, session, other)
            run.left = random.choice([1, 1, 3])
            await run.main()
            run.check_figures()
            cluster.ensemble.judge = lambda *_: None
        run.check(await drained(other.queue("jobs"), other), await drained(other.queue("results"), other))


@pytest.mark.parametrize("trouble", TROUBLE)
@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 60), marks=pytest.mark.slow)], ids=str)
def test_each_of_many_calls_ends_as_it_reports(trouble: str, seeds: range) -> None:
    for seed in seeds:
        run_virtual(partial(history, trouble, seed))
