"""A fault at each request of a repair and of a failing move: the put succeeds, and no runner of the move is left."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.foreign import queue_state
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing.simulator import Fault, run_virtual
from aiozkqueue.zookeeper import Create, SetData
from tests.simulation.faulty_client import FAULTY, SESSION_TIMEOUT, Result, cluster_with_session, stop_faults

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.queue.state.hooks import ItemFate

PATH = "/app/copied"
FIRST = 3

#: The repair asks for this many names at once, in place of 64. A fault is injected at each of these requests, so the
#: larger number would repeat the same case many times.
ASKED_AT_ONCE = 2 * FIRST


@pytest.fixture(autouse=True)
def _few_names_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_state, "NAMES_CHECKED", ASKED_AT_ONCE)


class Fates:
    """Records how the claims of one session end."""

    def __init__(self) -> None:
        self.settled: list[ItemFate] = []

    def claim_settled(self, claim: Claim, fate: ItemFate) -> None:
        del claim
        self.settled.append(fate)

    def retry_at(self, due: int, message_id: str) -> None:
        del due, message_id

    def release_later(self, claim: Claim, delay: float) -> None:
        del claim, delay


def put_to_a_copied_queue(number: int = 0, fault: Fault | None = None) -> Result:
    """Put to a queue whose counter is lower than the numbers of its items, with a fault at request ``number``."""
    result = Result()

    async def main() -> None:
        async with cluster_with_session(1) as (cluster, other):
            zookeeper = core_of(other).zookeeper
            await other.curator_queue("/app/original").put(b"copied")
            (name,) = await zookeeper.children("/app/original")
            data = (await zookeeper.read(f"/app/original/{name}")).data
            await zookeeper.ensure(PATH)
            for copy in range(FIRST, 2 * FIRST):
                await zookeeper.multi([Create(f"{PATH}/{name[:-10]}{copy:010d}", data)])
            async with cluster.connect(session_timeout=SESSION_TIMEOUT, name=FAULTY) as session:
                result.inject(cluster.ensemble, number, fault)
                try:
                    await session.curator_queue(PATH).put(b"put")
                except zq.QueueError as error:
                    result.trouble.append(repr(error))
                stop_faults(cluster.ensemble)
            names = sorted(await zookeeper.children(PATH))
            if len(names) != FIRST + 1:
                result.trouble.append(f"stored {names}")

    run_virtual(main)
    return result


def commit_to_a_copied_queue(number: int = 0, fault: Fault | None = None) -> Result:
    """Commit a message and a put to such a queue, with a fault at request ``number`` of the commit."""
    result = Result()

    async def main() -> None:
        async with cluster_with_session(1) as (cluster, other):
            zookeeper = core_of(other).zookeeper
            await other.curator_queue("/app/original").put(b"copied")
            (name,) = await zookeeper.children("/app/original")
            data = (await zookeeper.read(f"/app/original/{name}")).data
            await zookeeper.ensure(PATH)
            for copy in range(FIRST, 2 * FIRST):
                await zookeeper.multi([Create(f"{PATH}/{name[:-10]}{copy:010d}", data)])
            async with cluster.connect(session_timeout=SESSION_TIMEOUT, name=FAULTY) as session:
                jobs, fates = session.queue("jobs"), Fates()
                await jobs.put(b"taken")
                core_of(session).queue_state("jobs").claim_listeners += (fates,)
                tx = await session.transaction(autocommit=False).__aenter__()
                assert await tx.take(jobs) is not None
                tx.put(session.curator_queue(PATH), b"put")
                result.inject(cluster.ensemble, number, fault)
                committed = True
                try:
                    await tx.commit()
                except zq.QueueError as error:
                    committed = False
                    if not isinstance(error, zq.SessionExpiredError):
                        result.trouble.append(repr(error))
                stop_faults(cluster.ensemble)
                if len(fates.settled) != 1:
                    result.trouble.append(f"settled {fates.settled}")
                async with session.transaction() as later:
                    again = await later.take(jobs, timeout=0 if committed else 30)
                stored = len(await zookeeper.children(PATH)) - FIRST
                if (again is None) is not committed or stored != committed:
                    result.trouble.append(f"committed {committed}, taken again {again}, stored {stored}")

    run_virtual(main)
    return result


def fail_a_move(number: int = 0, fault: Fault | None = None) -> Result:
    """Move to a queue whose configuration cannot be decoded, with a fault at request ``number``."""
    result = Result()

    async def main() -> None:
        async with cluster_with_session(1) as (cluster, other):
            zookeeper = core_of(other).zookeeper
            for name in ("source", "target"):
                await other.queue(name).put(b"kept")
            await zookeeper.multi([SetData(core_of(other).queue_state("target").paths.base, b"{")])
            async with cluster.connect(session_timeout=SESSION_TIMEOUT, name=FAULTY) as session:
                result.inject(cluster.ensemble, number, fault)
                runtime = core_of(session)
                reference = await session.admin.moves.start("source", "target")
                await asyncio.sleep(60)
                status = await other.admin.moves.status(reference)
                runner = await zookeeper.exists(f"{runtime.root}/.moves/{reference}/runner")
                stop_faults(cluster.ensemble)
                if status.state != "failed" or runner is not None:
                    result.trouble.append(f"{status}, {runner}")
                await session.queue("usable").put(b"still")

    try:
        run_virtual(main)
    except (zq.QueueError, BaseExceptionGroup) as error:
        result.trouble.append(repr(error))
    return result


def troubles(run: Callable[..., Result]) -> dict[str, list[str]]:
    """Run without a fault, and then with each fault at each request; return what went wrong, by request and fault."""
    undisturbed = run()
    assert undisturbed.trouble == []
    assert undisturbed.requests > 5
    return {
        f"{number}, {fault}": result.trouble
        for number in range(1, undisturbed.requests + 1)
        for fault in (*Fault, None)
        if (result := run(number, fault)).trouble
    }


def test_a_fault_while_a_put_passes_over_taken_numbers_does_not_fail_it() -> None:
    assert troubles(put_to_a_copied_queue) == {}


def test_a_commit_whose_session_ends_during_a_repair_settles_its_claim_and_the_message_is_redelivered() -> None:
    assert troubles(commit_to_a_copied_queue) == {}


def test_a_fault_at_any_request_of_a_failing_move_leaves_no_trace_of_the_work_on_it() -> None:
    assert troubles(fail_a_move) == {}
