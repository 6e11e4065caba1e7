"""A process that moves messages is killed at any request.

Another one continues, without lost or duplicated messages.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

import pytest

import aiozkqueue as zq
from aiozkqueue.operations import mover
from tests.simulation.killing import When, killed_at

if TYPE_CHECKING:
    from collections.abc import Callable

QueueOf: TypeAlias = "Callable[[zq.QueueSession], zq.Queue[bytes]]"

MESSAGES = [str(number).encode() for number in range(3)]


async def _prepare(session: zq.QueueSession) -> None:
    await session.queue("target").configure(zq.QueueConfig(max_size=len(MESSAGES)))
    await session.queue("source").put_many(MESSAGES[:2])
    await session.queue("source").put(MESSAGES[2], key="k", unique=True)


async def _move(session: zq.QueueSession) -> None:
    reference = await session.admin.moves.start("source", "target")
    while (await session.admin.moves.status(reference)).state == "running":  # noqa: ASYNC110 - the state is in ZooKeeper
        await asyncio.sleep(0.05)


async def _continue_and_check(session: zq.QueueSession) -> list[str]:
    await asyncio.sleep(10)  # until the session of the killed process has ended
    await session.admin.moves.resume()
    while any(move.state == "running" for move in await session.admin.moves.all()):  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.1)
    wrong = [f"{move.state}: {move.error}" for move in await session.admin.moves.all() if move.state != "done"]
    taken: dict[str, list[bytes]] = {"source": [], "target": []}
    for name, bodies in taken.items():
        async with session.transaction() as tx:
            bodies += [message.value for message in await tx.take_many(session.queue(name), 10, timeout=1)]
    expected = (
        "target" if await session.admin.moves.all() else "source"
    )  # it may have been killed before the move began
    if sorted(taken[expected]) != MESSAGES or len(taken["source"] + taken["target"]) != len(MESSAGES):
        wrong.append(f"taken: {taken}")
    for queue in taken:
        await session.queue(queue).put(b"", key="k", unique=True)  # the key is free in both queues
    return wrong


@pytest.mark.parametrize("when", When)
def test_a_mover_killed_at_any_request_loses_and_duplicates_no_message(when: When) -> None:
    number = 0
    reached = True
    while reached:
        number += 1
        reached, found = killed_at(number, when, before=_prepare, work=_move, after=_continue_and_check)
        assert not found, f"killed at request {number}, {when.value.value}"
    assert number > 15


def _ours(session: zq.QueueSession) -> zq.Queue[bytes]:
    return session.queue("ours")


def _curators(session: zq.QueueSession) -> zq.Queue[bytes]:
    return session.curator_queue("/app/curators", lock_path="/app/curators-locks")


def _kazoos(session: zq.QueueSession) -> zq.Queue[bytes]:
    return session.kazoo_queue("/app/kazoos")


def _kazoos_without_locks(session: zq.QueueSession) -> zq.Queue[bytes]:
    return session.kazoo_queue("/app/kazoos", locking=False)


BETWEEN: dict[str, tuple[QueueOf, QueueOf]] = {
    "from Curator": (_curators, _ours),
    "to Curator": (_ours, _curators),
    "from kazoo to Curator": (_kazoos, _curators),
    "from kazoo without locks": (_kazoos_without_locks, _ours),
}


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("between", BETWEEN)
def test_a_mover_between_layouts_killed_at_any_request_loses_and_duplicates_no_message(
    when: When, between: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source_of, target_of = BETWEEN[between]
    monkeypatch.setattr(mover, "MOST_AT_ONCE", 1)  # an item of several messages takes several steps

    async def prepare(session: zq.QueueSession) -> None:
        source = source_of(session)
        if isinstance(source, zq.CuratorQueue):
            await source.put(MESSAGES[0])
            await source.put_multi(MESSAGES[1:])
        else:
            await source.put_many(MESSAGES)

    async def move(session: zq.QueueSession) -> None:
        reference = await session.admin.moves.start(source_of(session), target_of(session))
        while (await session.admin.moves.status(reference)).state == "running":  # noqa: ASYNC110 - the state is in ZooKeeper
            await asyncio.sleep(0.05)

    async def continue_and_check(session: zq.QueueSession) -> list[str]:
        await asyncio.sleep(10)  # until the session of the killed process has ended
        await session.admin.moves.resume()
        while any(status.state == "running" for status in await session.admin.moves.all()):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.1)
        wrong = [
            f"{status.state}: {status.error}" for status in await session.admin.moves.all() if status.state != "done"
        ]
        taken: list[bytes] = []
        expected = (
            target_of if await session.admin.moves.all() else source_of
        )  # it may have been killed before the move began
        async with session.transaction() as tx:
            while (message := await tx.take(expected(session), timeout=1)) is not None:
                taken.append(message.value)
        left = [await queue_of(session).size() for queue_of in (source_of, target_of)]
        return wrong if (taken, left) == (MESSAGES, [0, 0]) else [*wrong, f"taken: {taken}, left: {left}"]

    number = 0
    reached = True
    while reached:
        number += 1
        reached, found = killed_at(number, when, before=prepare, work=move, after=continue_and_check)
        assert not found, f"killed at request {number}, {when.value.value}"
    assert number > 15
