"""Names that are slow to resolve or have several addresses, busy threads, and servers that are slow or behind."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from aiozkqueue.testing import EmbeddedZooKeeper
from aiozkqueue.testing.ports import free_ports
from aiozkqueue.zookeeper import ConnectionLossError, Create, State, connect
from aiozkqueue.zookeeper.hosts import Ensemble, Server, parse_hosts
from aiozkqueue.zookeeper.session import Session
from tests.busy_threads import busy_threads
from tests.integration.zookeeper.scripted_server import InOrder, Peer, ScriptedServer, connected

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiozkqueue.testing import ZooKeeperProxy


class Names:
    """A name service that returns these addresses after a delay."""

    def __init__(self, patch: pytest.MonkeyPatch, *addresses: str, delay: float = 0.0) -> None:
        self.addresses = addresses
        self.delay = delay
        self.asked = 0
        patch.setattr(socket, "getaddrinfo", self._answer)

    def _answer(self, host: str, port: int, **_: object) -> list[Any]:
        assert host == "zk.example"
        self.asked += 1
        time.sleep(self.delay)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in self.addresses]


async def _answers(peer: Peer) -> None:
    await peer.asked()
    peer.send(connected(1, timeout=20_000))
    await peer.keep_alive()


async def test_a_name_that_takes_longer_to_resolve_than_an_attempt_lasts_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ScriptedServer(_answers) as server:
        names = Names(monkeypatch, "127.0.0.1", delay=3.0)
        port = server.hosts.rpartition(":")[2]
        zk = await connect(f"zk.example:{port}", session_timeout=0.3, connect_timeout=30)  # an attempt lasts 0.5 s
        assert names.asked == 1  # each lookup occupies a thread
        await zk.close()


async def test_a_session_that_is_over_costs_no_second_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(peer: Peer) -> None:
        asked = await peer.asked()
        if asked.session_id:
            peer.send(connected(0, timeout=0))  # the session has ended
        else:
            peer.send(connected(peer.number, timeout=20_000))
            await peer.keep_alive()

    async with ScriptedServer(script) as server:
        names = Names(monkeypatch, "127.0.0.1")
        zk = await connect(f"zk.example:{server.hosts.rpartition(':')[2]}", session_timeout=20)
        names.asked = 0
        connection = zk._session.connection
        assert connection is not None
        connection.abort("lost")
        async with asyncio.timeout(30):
            assert await zk.wait_connected(after=1) == 2
        assert names.asked == 1  # each takes long if a name server is down
        await zk.close()


async def test_a_name_without_an_answer_is_named_as_the_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    Names(monkeypatch, delay=60)
    with pytest.raises(ConnectionLossError, match=r"\(zk.example:2181: the lookup of its name has no answer yet\)"):
        await connect("zk.example", session_timeout=300, connect_timeout=0.2)  # an attempt lasts longer
    with pytest.raises(ConnectionLossError, match=r"\(zk.example:2181: the lookup of its name has no answer yet\)"):
        await connect("zk.example", session_timeout=0.3, connect_timeout=2)
    assert "zk.example:2181: the lookup of its name has no answer yet" in caplog.text


@pytest.mark.parametrize("question", ["ask_servers", "smaller_limits"])
def test_a_program_that_has_asked_a_server_whose_name_has_no_answer_ends(
    zookeeper: str, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    """A call in the threads of the loop would have to end first."""
    answered, ended = threading.Event(), threading.Event()

    async def program() -> None:
        zk = await connect(zookeeper, session_timeout=20)
        zk._session.ensemble = Ensemble((Server("zk.example", 2181),))
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answered.wait())
        await (zk.ask_servers("srvr") if question == "ask_servers" else zk.smaller_limits())
        await zk.close()

    def run() -> None:
        asyncio.run(program())
        ended.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ended.wait(30)
    finally:
        answered.set()
        thread.join()


async def test_a_closed_client_leaves_no_lookup_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    Names(monkeypatch, delay=60)
    before = asyncio.all_tasks()
    connecting = asyncio.create_task(connect("zk.example"))
    await asyncio.sleep(0.05)
    connecting.cancel()
    await asyncio.wait([connecting])
    async with asyncio.timeout(30):
        while asyncio.all_tasks() != before:  # noqa: ASYNC110 - no event reports the last end
            await asyncio.sleep(0.01)


async def test_a_session_is_resumed_although_calls_of_the_program_occupy_all_threads_of_the_loop(
    zookeeper_proxy: ZooKeeperProxy,
) -> None:
    port = zookeeper_proxy.hosts.rpartition(":")[2]
    zk = await connect(f"localhost:{port}", session_timeout=20)
    session = zk.session_id
    async with busy_threads():
        zookeeper_proxy.reset_connections()
        async with asyncio.timeout(30):
            assert await zk.exists("/")
    assert zk.session_id == session
    await zk.close()


async def test_all_addresses_of_a_name_are_tried_within_the_session_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    timeout = 9.0

    async def script(peer: Peer) -> None:
        if peer._writer.get_extra_info("sockname")[0] == "127.0.0.1":
            await _answers(peer)
        await asyncio.sleep(60)

    async with ScriptedServer(script, host="0.0.0.0") as server:
        Names(monkeypatch, "127.0.0.3", "127.0.0.2", "127.0.0.1")
        there = Server("zk.example", int(server.hosts.rpartition(":")[2]))
        session = Session(Ensemble((there,)), timeout=timeout, jitter=InOrder())
        session.start()
        await asyncio.wait_for(session.wait_connected(), timeout)
        await session.close()


async def test_the_address_that_was_lost_is_tried_last(monkeypatch: pytest.MonkeyPatch) -> None:
    used = list[str]()

    async def script(peer: Peer) -> None:
        used.append(peer._writer.get_extra_info("sockname")[0])
        await peer.asked()
        peer.send(connected(1, timeout=20_000))
        await peer.keep_alive()

    async with ScriptedServer(script, host="0.0.0.0") as server:
        Names(monkeypatch, "127.0.0.2", "127.0.0.1")
        there = Server("zk.example", int(server.hosts.rpartition(":")[2]))
        session = Session(Ensemble((there,)), timeout=20.0, jitter=InOrder())
        session.start()
        await session.wait_connected()
        assert session.connection is not None
        session.connection.abort("lost")
        await session.wait_connected()
        assert used == ["127.0.0.2", "127.0.0.1"]
        await session.close()


async def test_a_server_that_is_slower_than_its_share_of_the_session_timeout_is_used() -> None:
    async def script(peer: Peer) -> None:
        await peer.asked()
        await asyncio.sleep(0.7)
        peer.send(connected(1, timeout=20_000))
        await peer.keep_alive()

    async with ScriptedServer(script) as server:
        hosts = ",".join([server.hosts] * 8)
        zk = await connect(hosts, session_timeout=1.5, connect_timeout=50)  # half a second for each at first
        assert zk.session_timeout == 20.0
        await zk.close()


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that answers no packets of a connection: its queue of connections is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, ExitStack() as stack:
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.settimeout(0)
            waiting.connect_ex(server.getsockname())
        yield f"127.0.0.1:{server.getsockname()[1]}"


async def test_an_address_that_drops_packets_does_not_use_up_the_time_of_the_others(silent: str) -> None:
    async with ScriptedServer(_answers) as server:
        for seed in range(3):  # the order of the servers is random
            ensemble = parse_hosts(f"{silent},{server.hosts}")
            session = Session(ensemble, timeout=600, jitter=random.Random(seed))
            await session.open(within=9, prepare=partial(asyncio.sleep, 0))
            await session.close()


async def test_a_client_stays_away_from_a_server_with_older_data_and_names_the_cause() -> None:
    (port,) = free_ports(1)
    async with EmbeddedZooKeeper(port=port) as server:
        zk = await connect(server.hosts, session_timeout=20.0)
        for name in "abcdefgh":
            await zk.multi([Create(f"/{name}")])
    try:
        async with EmbeddedZooKeeper(port=port) as restored:
            session = zk._session
            async with asyncio.timeout(30):
                while "older data" not in str(session._outages.attempts):  # noqa: ASYNC110 - no event reports it
                    await asyncio.sleep(0.05)
            assert zk.state is State.SUSPENDED
            restarted = await connect(restored.hosts, session_timeout=20.0)
            assert await restarted.exists("/a") is None
            await restarted.close()
    finally:
        await zk.close()


async def test_a_name_whose_address_changes_while_no_server_answers_is_looked_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ScriptedServer(_answers) as server, asyncio.timeout(30):
        names = Names(monkeypatch, "127.0.0.2")  # the server does not listen there
        port = server.hosts.rpartition(":")[2]
        connecting = asyncio.create_task(connect(f"zk.example:{port}", session_timeout=5, connect_timeout=None))
        while names.asked < 2:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.01)
        names.addresses = ("127.0.0.1",)
        zk = await connecting
        await zk.close()
