"""Messages that fail until their scheduled retries are exhausted.

The messages that are then put are not taken, so that they can be counted.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiozkqueue as zq
from tests.simulation.programs import Feature, join

if TYPE_CHECKING:
    from tests.simulation.recorder import Recorder

TRIED, GIVEN_UP = "tried", "given-up"
SCHEDULE = (0.4, 1.0)


@dataclass
class Tries:
    """The observations about these messages."""

    put_at: dict[str, float] = field(default_factory=dict[str, float])
    """The start of each put."""
    tries: list[tuple[str, int, float]] = field(default_factory=list[tuple[str, int, float]])
    """The token, the attempt, and the time of its delivery."""
    failed: set[int] = field(default_factory=set[int])
    """The indexes of the tries that ended by a `Retry`, and not by the end of their process."""
    looks: list[tuple[list[str], list[str]]] = field(default_factory=list[tuple[list[str], list[str]]])
    """The dead letters, and the messages that their exhausted handlers have put, listed right afterwards."""


async def prepare(run: Recorder, session: zq.QueueSession) -> None:  # noqa: ARG001 - as every preparation
    await session.queue(TRIED).configure(zq.QueueConfig(policy=zq.AtLeastOnce(backoff=zq.Fixed(0))))


async def put(run: Recorder, client: str, session: zq.QueueSession) -> None:  # noqa: ARG001 - as every program
    for _ in range(run.random.randint(1, 4)):
        token = run.token()
        run.history.part(Tries).put_at[token] = run.loop.time()
        with suppress(zq.NotCommittedError, zq.OutcomeUnknownError):  # no server has answered for the limit of a call
            await session.queue(TRIED).put(token.encode())


async def fail(run: Recorder, client: str, session: zq.QueueSession) -> None:  # noqa: ARG001 - as every program
    seen, queue = run.history.part(Tries), session.queue(TRIED)

    async def give_up(delivery: zq.Delivery[bytes]) -> None:
        await asyncio.sleep(run.random.random() * 0.05)
        delivery.put(GIVEN_UP, delivery.value)

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        index = len(seen.tries)
        seen.tries.append((delivery.value.decode(), delivery.attempt, run.loop.time()))
        await asyncio.sleep(run.random.random() * 0.1)
        seen.failed.add(index)
        raise zq.Retry(schedule=SCHEDULE, exhausted=give_up)

    async with session.listener(queue, handler, concurrency=2):
        await asyncio.sleep(run.random.random() * 4)
    with suppress(zq.ConnectionLostError):  # as above
        dead = [letter.value.decode() for letter in await queue.dead_letters.peek(10_000)]
        seen.looks.append((dead, [message.value.decode() for message in await session.queue(GIVEN_UP).peek(10_000)]))


join(Feature("scheduled retries", prepare, [put, fail, fail]))
