"""Messages that are cancelled while handlers run for them, or are about to.

Such a message ends without a delivery. Therefore only these programs take from their queues, and record their
observations in `InHand`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import aiozkqueue as zq
from tests.simulation.programs import Feature, join
from tests.simulation.programs.keys import NEVER, Action, outcome_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from aiozkqueue.listeners import Batch
    from aiozkqueue.testing.simulator.tree import Znode
    from tests.simulation.recorder import Recorder

IN_HAND, HANDLED = "in-hand", "handled"
#: Seconds within which a handler is cancelled, with time for a lost session and a paused process.
PROMPTLY = 40.0


@dataclass(eq=False)
class Cancelled(Action):
    """One call of `Queue.cancel`, and what it returned."""

    result: zq.Alteration | None = None


@dataclass(eq=False)
class Running:
    """One call of a handler, for one message or for several."""

    client: str
    tokens: list[str]
    began: float
    ended: float = NEVER


@dataclass
class InHand:
    """The observations of these messages."""

    puts: dict[str, Action] = field(default_factory=dict[str, Action])
    ids: dict[str, str] = field(default_factory=dict[str, str])
    cancelled: dict[str, list[Cancelled]] = field(default_factory=dict[str, "list[Cancelled]"])
    """The cancellations of each message, by token."""
    running: list[Running] = field(default_factory=list["Running"])
    handled: list[str] = field(default_factory=list[str])
    """The tokens that handlers have put by their commits."""
    left: list[str] = field(default_factory=list[str])
    """The tokens that are stored at the end."""
    leftovers: list[str] = field(default_factory=list[str])
    taken: float = NEVER
    """The time when the run began to take the remaining messages, whatever its clients still did."""
    over: float = NEVER
    """The end of the history. Killed processes only end after it."""

    def gone(self, tokens: Iterable[str]) -> float:
        """Return when the first cancellation of one of these messages was reported."""
        calls = [call for token in tokens for call in self.cancelled.get(token, ())]
        return min((call.decided for call in calls if call.result is zq.Alteration.DONE), default=NEVER)


async def prepare(run: Recorder, session: zq.QueueSession) -> None:
    backoff = zq.Fixed(run.random.choice([0, 0.1]))
    policy = run.random.choice([zq.AtLeastOnce(backoff=backoff), zq.ConsumeTimes(50, backoff=backoff)])
    await session.queue(IN_HAND).configure(zq.QueueConfig(policy=policy, bundle=run.random.choice([1, 1, 4])))
    await session.queue(HANDLED).configure(zq.QueueConfig(policy=zq.AtLeastOnce()))


async def put(run: Recorder, client: str, session: zq.QueueSession) -> None:  # noqa: ARG001 - as every program
    random, log = run.random, run.history.part(InHand)
    for _ in range(random.randint(2, 5)):
        await asyncio.sleep(random.random() * random.choice([0, 0.05, 0.5]))
        tokens = [run.token() for _ in range(random.choice([1, 1, 4, 9]))]
        several = [log.puts.setdefault(token, Action(run.loop.time())) for token in tokens]
        async with outcome_of(run, *several):
            ids = await session.queue(IN_HAND).put_many([token.encode() for token in tokens])
            log.ids.update(zip(tokens, ids, strict=True))


async def cancel(run: Recorder, client: str, session: zq.QueueSession) -> None:  # noqa: ARG001 - as every program
    """Cancel messages, most of them while their handlers run."""
    random, log = run.random, run.history.part(InHand)
    for _ in range(random.randint(4, 12)):
        await asyncio.sleep(random.random() * random.choice([0.02, 0.2, 0.6]))
        held = [token for running in log.running if running.ended == NEVER for token in running.tokens]
        tokens = [token for token in (held if held and random.random() < 0.6 else log.ids) if token in log.ids]
        if not tokens:
            continue
        token = random.choice(tokens)
        call = Cancelled(run.loop.time())
        log.cancelled.setdefault(token, []).append(call)
        async with outcome_of(run, call):
            call.result = await session.queue(IN_HAND).cancel(id=log.ids[token], running=True)


async def listen(run: Recorder, client: str, session: zq.QueueSession) -> None:
    random, log = run.random, run.history.part(InHand)

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        await handle(run, client, [delivery.body.decode()], lambda token: delivery.put(HANDLED, token))

    async def batch_handler(batch: Batch[bytes]) -> None:
        tokens = [message.body.decode() for message in batch]
        await handle(run, client, tokens, lambda token: batch.put(HANDLED, token))

    queue, concurrency = session.queue(IN_HAND), random.choice([1, 2, 8])
    on_lost: Literal["finish", "cancel"] = random.choice(["finish", "cancel"])
    if random.random() < 0.5:
        listener = session.listener(queue, handler, concurrency=concurrency, on_lost=on_lost, drain_timeout=None)
    else:
        listener = session.listener(
            queue,
            batch_handler,
            batch=random.choice([3, 20]),
            batch_wait=random.choice([0, 0.3, 1]),
            concurrency=concurrency,
            on_lost=on_lost,
            drain_timeout=None,
        )
    run.loop.call_later(random.random() * 6, listener.stop)
    await run.perhaps_cancelled(listener.run())
    for running in log.running:
        if running.client == client:
            running.ended = min(running.ended, run.loop.time())


async def work(run: Recorder, client: str, session: zq.QueueSession) -> None:
    """Put, listen and cancel at the same time."""
    async with asyncio.TaskGroup() as group:
        for program in (put, listen, cancel):
            group.create_task(program(run, client, session))


async def handle(run: Recorder, client: str, tokens: list[str], put_: Callable[[bytes], object]) -> None:
    """Handle messages, and wait to be cancelled if one of them has been."""
    log, random = run.history.part(InHand), run.random
    running = Running(client, tokens, run.loop.time())
    log.running.append(running)
    patience = running.began + random.random() * random.choice([0, 0.05, 1])
    try:
        for token in tokens:
            put_(token.encode())
        while run.loop.time() < patience or log.gone(tokens) < run.loop.time() < log.gone(tokens) + 2 * PROMPTLY:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.1)
    finally:
        running.ended = run.loop.time()


async def take_the_rest(run: Recorder, session: zq.QueueSession) -> None:
    """Take the remaining messages of both queues."""
    log = run.history.part(InHand)
    log.taken = run.loop.time()
    for name, tokens in ((IN_HAND, log.left), (HANDLED, log.handled)):
        while True:
            async with session.transaction() as tx:
                messages = await tx.take_many(session.queue(name), 50, timeout=30)
            tokens += [message.body.decode() for message in messages]
            if not messages:
                break


def finish(run: Recorder, nodes: Mapping[str, Znode]) -> None:
    """Record the remains of ended messages."""
    run.history.part(InHand).over = run.loop.time()
    folders = ("items", "locks", "meta", "due")
    places = tuple(f"/zms/{IN_HAND}/{folder}/" for folder in folders)
    run.history.part(InHand).leftovers += [path for path in nodes if path.startswith(places)]


join(Feature("cancelled while held", prepare, [put, work, work, cancel], finish, relax=take_the_rest))
