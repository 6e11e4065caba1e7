"""Behaviour of the simulated ensemble that a test cannot produce on a single real server."""

from __future__ import annotations

import asyncio
import gc
import itertools
import warnings
from contextvars import copy_context
from typing import TYPE_CHECKING

import anyio
import pytest

from aiozkqueue.testing import run_virtual, simulated
from aiozkqueue.testing.simulator import Fault, Kind, Process, StuckError, VirtualLoop
from aiozkqueue.testing.simulator.loop import PROCESS
from aiozkqueue.testing.simulator.tree import LAST_SEQUENCE
from aiozkqueue.zookeeper import (
    ConnectionLossError,
    Create,
    EventKind,
    MultiError,
    NodeExistsError,
    SetData,
    State,
    WatchEvent,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.testing import Cluster


def virtually(servers: int = 1) -> Callable[[Callable[[Cluster], Awaitable[None]]], Callable[[], None]]:
    """Run a test with an ensemble on a virtual clock."""

    def wrap(test: Callable[[Cluster], Awaitable[None]]) -> Callable[[], None]:
        async def main() -> None:
            async with simulated(servers=servers) as cluster:
                await test(cluster)

        def run() -> None:
            run_virtual(main)

        run.__name__ = test.__name__
        return run

    return wrap


@virtually()
async def test_a_simulated_counter_stays_at_its_maximum(cluster: Cluster) -> None:
    a = await cluster.client()
    await a.ensure("/q")
    node = cluster.ensemble.tree.nodes["/q"]
    node.creates = LAST_SEQUENCE
    before = node.pzxid
    assert await a.multi([Create("/q/n-", sequential=True)]) == ["/q/n-2147483647"]
    for _ in range(2):
        with pytest.raises(MultiError) as refused:
            await a.multi([Create("/q/n-", sequential=True)])
        assert isinstance(refused.value.error, NodeExistsError)
    assert node.pzxid == before


@virtually(servers=3)
async def test_a_session_that_ends_with_too_many_ephemerals_crashes_every_server(cluster: Cluster) -> None:
    a, b = await cluster.client(), await cluster.client()
    cluster.ensemble.max_request = 1500

    async def create(count: int) -> None:  # each takes 97 bytes: 93 for its path, and 4
        for number in range(count):
            await a.multi([Create(f"/{number:092d}", ephemeral=True)])

    await create(30)
    cluster.expire("client-1")
    assert not cluster.ensemble.dead
    await a.wait_connected(after=1)
    await create(31)
    cluster.expire("client-1")
    assert cluster.ensemble.dead
    with pytest.raises(ConnectionLossError):
        await b.multi([])
    await asyncio.sleep(100)
    assert b.state is State.SUSPENDED


@virtually(servers=3)
async def test_a_client_of_a_lagging_follower_reads_old_data_until_it_syncs(cluster: Cluster) -> None:
    a, b = await cluster.client(), await cluster.client()
    server = b.session.connection.server  # type: ignore[union-attr]
    server.lag = 5.0
    a.session.server = next(candidate for candidate in cluster.ensemble.servers if candidate is not server)
    cluster.cut("client-1")
    await a.wait_connected()
    await a.multi([Create("/new")])
    assert await a.exists("/new") is not None
    assert await b.exists("/new") is None
    began = asyncio.get_running_loop().time()
    await b.sync("/")
    assert await b.exists("/new") is not None
    assert asyncio.get_running_loop().time() - began == pytest.approx(5.0, abs=0.1)


@virtually(servers=3)
async def test_a_server_refuses_a_client_that_has_seen_newer_data(cluster: Cluster) -> None:
    a = await cluster.client()
    first, second, third = cluster.ensemble.servers
    connected = a.session.connection.server  # type: ignore[union-attr]
    for server in (first, second, third):
        server.lag = 0.0 if server is connected else 3.0
    await a.multi([Create("/new")])
    a.session.server = next(server for server in cluster.ensemble.servers if server is not connected)
    cluster.cut("client-1")
    began = asyncio.get_running_loop().time()
    await a.wait_connected()
    assert await a.exists("/new") is not None
    assert asyncio.get_running_loop().time() - began > 2.5


@virtually(servers=3)
async def test_a_sync_does_not_wait_for_the_commit_of_proposed_writes(cluster: Cluster) -> None:
    a, b = await cluster.client(), await cluster.client()
    cluster.ensemble.delays.commit = lambda: 1.0
    cluster.ensemble._committing._delay = lambda: 1.0
    pending = a.multi([Create("/new")])
    await asyncio.sleep(0.5)
    await b.sync("/")
    assert await b.exists("/new") is None
    await pending
    await b.sync("/")
    assert await b.exists("/new") is not None


@pytest.mark.parametrize("kept", [0, 1])
def test_an_election_keeps_all_committed_and_some_proposed_writes(kept: int) -> None:
    @virtually(servers=3)
    async def test(cluster: Cluster) -> None:
        a, b = await cluster.client(), await cluster.client()
        await a.multi([Create("/committed")])
        cluster.ensemble._committing._delay = lambda: 1.0
        pending = a.multi([Create("/proposed"), SetData("/committed", b"1")])
        await asyncio.sleep(0.5)
        epoch = a.last_zxid >> 32
        cluster.ensemble.elect(keep=kept)
        with pytest.raises(ConnectionLossError):
            await pending
        cluster.ensemble._committing._delay = lambda: 0.0
        for client in (a, b):
            assert await client.wait_connected(generation=1) == 1
            await client.sync("/")
            assert (await client.exists("/proposed") is not None) == kept
            assert (await client.read("/committed")).data == b"1" * kept
        await a.multi([Create("/after")])
        assert a.last_zxid >> 32 == epoch + 1

    test()


@pytest.mark.parametrize(
    ("fault", "stray", "applied"),
    [
        (Fault.LOST_BEFORE, False, False),
        (Fault.LOST_AFTER, False, True),
        (Fault.LATE, False, False),  # refused, because the session has reconnected meanwhile
        (Fault.LATE, True, True),
        (Fault.SILENCE, False, False),
    ],
)
def test_each_fault_does_what_its_name_says(fault: Fault, *, stray: bool, applied: bool) -> None:
    @virtually()
    async def test(cluster: Cluster) -> None:
        a, loop = await cluster.client(session_timeout=6), asyncio.get_running_loop()
        ensemble = cluster.ensemble
        ensemble.strays = lambda _: stray
        ensemble.delays.lingering = lambda: 0.5
        ensemble.judge = lambda _, request: fault if request.kind is Kind.MULTI else None
        began = loop.time()
        with pytest.raises(ConnectionLossError):
            await a.multi([Create("/x")])
        assert loop.time() - began == pytest.approx(4.0 if fault is Fault.SILENCE else 0.0, abs=0.01)
        assert await a.wait_connected(generation=1) == 1
        assert (await a.exists("/x") is not None) == (fault is Fault.LOST_AFTER)
        await asyncio.sleep(1)
        assert (await a.exists("/x") is not None) == applied

    test()


@virtually()
async def test_a_late_event_is_delivered_before_the_reply_to_a_later_read(cluster: Cluster) -> None:
    a, b = await cluster.client(), await cluster.client()
    events: list[WatchEvent] = []
    await a.watch("/", events.append, recursive=True)
    stream = a.session.connection.stream  # type: ignore[union-attr]
    stream._delay = lambda: 3.0
    await b.multi([Create("/x")])
    reading = asyncio.ensure_future(a.exists("/x"))
    await asyncio.sleep(1)
    assert events == []
    assert not reading.done()
    assert await reading is not None
    assert events == [WatchEvent(EventKind.CREATED, "/x")]


@virtually()
async def test_a_paused_process_does_nothing_and_loses_its_session(cluster: Cluster) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    process = Process(loop, "paused")
    context = copy_context()
    context.run(PROCESS.set, process)
    beats: list[float] = []
    lost: list[int] = []

    async def live() -> None:
        client = await cluster.client(session_timeout=6)
        await client.multi([Create("/e", ephemeral=True)])
        for _ in range(30):
            await asyncio.sleep(1)
            beats.append(loop.time())
        lost.append(client.generation)

    task = loop.create_task(live(), context=context)
    other = await cluster.client()
    await asyncio.sleep(3.5)
    process.pause(20)
    await asyncio.sleep(5)
    assert await other.exists("/e") is not None
    await asyncio.sleep(3)
    assert await other.exists("/e") is None
    await task
    assert len(beats) == 30
    assert max(after - before for before, after in itertools.pairwise(beats)) > 19
    assert lost == [2]


def test_the_error_for_a_program_that_waits_forever_says_where_it_waits() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(StuckError, match=r"ever be due.*test_ensemble.py"):
        run_virtual(main)

    async def slow() -> None:
        await asyncio.sleep(100)

    with pytest.raises(StuckError, match="virtual time"):
        run_virtual(slow, limit=10)


def test_clean_up_runs_although_the_program_failed() -> None:
    done: list[str] = []

    async def background() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(1)
            done.append("background")

    async def main() -> None:
        task = asyncio.ensure_future(background())
        await asyncio.sleep(1)
        assert not task.done()
        raise KeyError

    with pytest.raises(KeyError):
        run_virtual(main)
    assert done == ["background"]


def test_a_process_that_is_paused_until_the_end_leaves_no_coroutine_unawaited() -> None:
    async def work() -> None:
        await asyncio.sleep(0)

    async def begin(first: Awaitable[None]) -> None:
        await first

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        process = Process(loop, "killed")
        context = copy_context()
        context.run(PROCESS.set, process)
        process.pause(1000)
        async with anyio.create_task_group() as group:
            tasks = [loop.create_task(begin(work()), context=context)]
            context.run(group.start_soon, work)
            await asyncio.sleep(1)
            await asyncio.wait(tasks)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with pytest.raises(StuckError):
            run_virtual(main, limit=10)
        gc.collect()
    assert seen == []
