"""The whole queue in memory, on a virtual clock."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

import aiozkqueue as zq
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import run_virtual, simulated
from aiozkqueue.zookeeper import Create, Silence


def test_a_message_passes_two_simulated_sessions_without_real_waiting() -> None:
    async def main() -> float:
        began = asyncio.get_running_loop().time()
        async with simulated() as cluster, cluster.connect() as producer, cluster.connect() as consumer:
            await producer.queue("jobs").put(b"one")
            async with consumer.transaction() as tx:
                message = await tx.take(consumer.queue("jobs"), timeout=5)
                assert message is not None
                assert message.value == b"one"
                tx.put("results", b"two")
            assert await producer.queue("jobs").size() == 0
            assert await producer.queue("results").size() == 1
            await asyncio.sleep(1000)
        return asyncio.get_running_loop().time() - began

    started = time.perf_counter()
    assert 1000 < run_virtual(main) < 1001
    assert time.perf_counter() - started < 100


async def test_the_simulator_runs_on_any_loop() -> None:
    async with simulated() as cluster, cluster.connect() as session:
        await session.queue("jobs").put(b"one")
        async with session.queue("jobs").consume(until_idle=0) as deliveries:
            assert [delivery.value async for delivery in deliveries] == [b"one"]


def test_an_expired_simulated_session_loses_its_locks() -> None:
    async def main() -> None:
        async with simulated() as cluster, cluster.connect(name="a") as a, cluster.connect() as b:
            await a.queue("jobs").put(b"one")
            tx = a.transaction(autocommit=False)
            async with tx as taken:
                assert await taken.take(a.queue("jobs"), timeout=5) is not None
                cluster.expire("a")
                async with b.transaction() as other:
                    assert await other.take(b.queue("jobs"), timeout=5) is not None
                try:
                    await taken.commit()
                except zq.SessionExpiredError:
                    return
                raise AssertionError

    run_virtual(main)


class _Pieces:
    def __init__(self) -> None:
        self.pieces: list[list[str]] = []

    def take(self, names: list[str]) -> None:
        self.pieces.append(names)


def test_a_listing_arrives_in_pieces_and_some_attempts_are_partial() -> None:
    async def main() -> list[int]:
        made: list[_Pieces] = []

        def collector() -> _Pieces:
            made.append(_Pieces())
            return made[-1]

        async with simulated() as cluster, cluster.connect() as session:
            zookeeper = core_of(session).zookeeper
            await zookeeper.ensure("/a")
            names = [f"n{number}" for number in range(20)]
            await zookeeper.multi([Create(f"/a/{name}") for name in names])
            for _ in range(100):
                collected = await zookeeper.children_into("/a", collector)
                assert collected is made[-1]
                assert sorted(name for piece in collected.pieces for name in piece) == sorted(names)
        return [len(collecting.pieces) for collecting in made]

    pieces = run_virtual(main)
    assert len(pieces) > 100
    assert max(pieces) > 3


def test_a_function_that_a_program_runs_in_a_thread_takes_no_virtual_time() -> None:
    def work() -> str:
        end = time.perf_counter() + 0.1
        while time.perf_counter() < end:  # not a sleep, which may not block an event loop
            pass
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return "done outside of the loop"
        return "done on the loop"

    def fail() -> None:
        msg = "bad file"
        raise OSError(msg)

    async def main() -> str:
        async with asyncio.timeout(60):
            with pytest.raises(OSError, match="bad file"):
                await asyncio.to_thread(fail)
            return await asyncio.to_thread(work)

    assert run_virtual(main) == "done outside of the loop"


def test_a_simulated_program_looks_up_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[object] = []  # a name server that does not answer would take seconds of real time

    def look_up(*arguments: object, **_: object) -> list[object]:
        looked_up.append(arguments)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look_up)

    async def main() -> None:
        async with simulated() as cluster, cluster.connect() as session:
            answers = await core_of(session).zookeeper.ask_servers("srvr")
            assert set(answers.values()) == {Silence.UNREACHABLE}

    run_virtual(main)
    assert looked_up == []
