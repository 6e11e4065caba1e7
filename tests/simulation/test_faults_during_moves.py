"""A move between layouts, with a fault at each request, or cancelled at each moment, during other moves and takes.

A request is lost before or after it is applied, or the ZooKeeper session ends with it. Meanwhile, a second session
works on a move of the same queue, and a consumer takes one of its messages. At the end, each message has been consumed
once or is in the target once, the order within an item is unchanged, and no lock is left.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

import pytest

import aiozkqueue as zq
from aiozkqueue.operations import mover
from aiozkqueue.testing.simulator import Fault, run_virtual
from tests.simulation.faulty_client import FAULTY, SESSION_TIMEOUT, Result, cluster_with_session, stop_faults

if TYPE_CHECKING:
    from collections.abc import Callable

QueueOf: TypeAlias = "Callable[[zq.QueueSession], zq.Queue[bytes]]"

MESSAGES = [b"%d" % number for number in range(5)]
#: Milliseconds between two moments at which the start of the move is cancelled.
STEP = 3


def ours(session: zq.QueueSession) -> zq.Queue[bytes]:
    return session.queue("ours")


def of_curator(session: zq.QueueSession) -> zq.Queue[bytes]:
    return session.curator_queue("/app/curators", lock_path="/app/curators-locks")


def of_kazoo(session: zq.QueueSession) -> zq.Queue[bytes]:
    return session.kazoo_queue("/app/kazoos", locking=False)


async def put(source: zq.Queue[bytes]) -> None:
    """Put messages, the last three as one item if an item may hold several."""
    if isinstance(source, zq.CuratorQueue):
        await source.put_many(MESSAGES[:2])
        await source.put_multi(MESSAGES[2:])
    else:
        await source.put_many(MESSAGES)


async def finish(session: zq.QueueSession) -> list[str]:
    """Continue the unfinished moves, wait for all moves, and return the failed ones."""
    async with asyncio.timeout(60):
        while any(move.state == "running" for move in await session.admin.moves.all()):
            await session.admin.moves.resume()
            await asyncio.sleep(1)
    return [f"{move.state}: {move.error}" for move in await session.admin.moves.all() if move.state != "done"]


async def drained(session: zq.QueueSession, queue: zq.Queue[bytes]) -> list[bytes]:
    taken: list[bytes] = []
    async with session.transaction() as tx:
        while (message := await tx.take(queue, timeout=0.5)) is not None:
            taken.append(message.body)
    return taken


def move(
    between: tuple[QueueOf, QueueOf], number: int = 0, fault: Fault | None = None, *, cancelled: float | None = None
) -> Result:
    """Move with a fault at request ``number``, with the end of the ZooKeeper session at it, or with a cancellation."""
    result, (source_of, target_of) = Result(), between

    async def main() -> None:
        async with cluster_with_session(1) as (cluster, other):
            source, target = source_of(other), target_of(other)
            await put(source)
            consumed: list[bytes] = []

            async def consume() -> None:
                async with other.transaction() as tx:
                    message = await tx.take(source, timeout=0.05)
                    consumed.extend([] if message is None else [message.body])
                    await asyncio.sleep(0.02)

            async with cluster.connect(session_timeout=SESSION_TIMEOUT, name=FAULTY) as session:
                result.inject(cluster.ensemble, number, fault)
                moving = asyncio.create_task(session.admin.moves.start(source_of(session), target_of(session)))
                taking = asyncio.create_task(consume())
                second = asyncio.create_task(other.admin.moves.start(source, target))
                if cancelled is not None:
                    await asyncio.sleep(cancelled)
                    moving.cancel()
                with suppress(asyncio.CancelledError):
                    await moving
                await asyncio.gather(taking, second)
                result.trouble += await finish(other)
                stop_faults(cluster.ensemble)
                moved, left = await drained(other, target), await drained(other, source)
            if sorted([*consumed, *moved]) != MESSAGES or left:
                result.trouble.append(f"consumed {consumed}, moved {moved}, left {left}")
            if moved != sorted(moved):
                result.trouble.append(f"moved in the order of {moved}")
            result.trouble += [path for path in cluster.ensemble.tree.nodes if "locks/" in path or "/taken/" in path]

    try:
        run_virtual(main)
    except TimeoutError:
        result.trouble.append("not all has been moved")
    return result


@pytest.mark.parametrize("between", [(of_curator, ours), (ours, of_curator), (of_kazoo, of_curator)])
def test_a_fault_or_cancellation_anywhere_in_a_move_loses_and_duplicates_no_message(
    between: tuple[QueueOf, QueueOf], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mover, "MOST_AT_ONCE", 1)  # an item of several messages takes several steps
    undisturbed = move(between)
    assert undisturbed.trouble == []
    assert undisturbed.requests > 10
    wrong = {
        f"{number}, {fault}": result.trouble
        for number in range(1, undisturbed.requests + 1)
        for fault in (*Fault, None)
        if (result := move(between, number, fault)).trouble
    }
    for milliseconds in range(0, 60, STEP):
        result = move(between, cancelled=milliseconds / 1000)
        wrong |= {f"cancelled after {milliseconds} ms": result.trouble} if result.trouble else {}
    assert not wrong
