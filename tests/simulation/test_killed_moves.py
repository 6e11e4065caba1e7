"""A process that moves messages, killed at any of its requests, loses none and doubles none: another one goes on."""

from __future__ import annotations

import asyncio

import pytest

import aiozkqueue as zq
from tests.simulation.killing import When, killed_at

MESSAGES = [str(number).encode() for number in range(3)]


async def _prepare(session: zq.QueueSession) -> None:
    await session.queue("target").configure(zq.QueueConfig(max_size=len(MESSAGES)))
    await session.queue("source").put_many(MESSAGES[:2])
    await session.queue("source").put(MESSAGES[2], key="k", unique=True)


async def _move(session: zq.QueueSession) -> None:
    reference = await session.moves.start("source", "target")
    while (await session.moves.status(reference)).state == "running":  # noqa: ASYNC110 - it is in ZooKeeper
        await asyncio.sleep(0.05)


async def _go_on(session: zq.QueueSession) -> list[str]:
    await asyncio.sleep(10)  # until the session of the killed one is over
    await session.moves.resume()
    while any(move.state == "running" for move in await session.moves.all()):  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.1)
    wrong = [f"{move.state}: {move.error}" for move in await session.moves.all() if move.state != "done"]
    taken: dict[str, list[bytes]] = {"source": [], "target": []}
    for name, bodies in taken.items():
        async with session.begin() as tx:
            bodies += [message.value for message in await tx.take_many(session.queue(name), 10, timeout=1)]
    there = "target" if await session.moves.all() else "source"  # it may have been killed before it was begun
    if sorted(taken[there]) != MESSAGES or len(taken["source"] + taken["target"]) != len(MESSAGES):
        wrong.append(f"taken: {taken}")
    for queue in taken:
        await session.queue(queue).put(b"", key="k", unique=True)  # the key has come free in both
    return wrong


@pytest.mark.parametrize("when", When)
def test_a_mover_killed_at_any_request_loses_and_doubles_nothing(when: When) -> None:
    number = 0
    reached = True
    while reached:
        number += 1
        reached, found = killed_at(number, when, before=_prepare, work=_move, after=_go_on)
        assert not found, f"killed at request {number}, {when.value.value}"
    assert number > 15
