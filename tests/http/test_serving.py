"""`aiozkqueue serve` as a process: discovery, health checks, outages and shutdown."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import sys
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import httpx
import pytest

import aiozkqueue as zq
from aiozkqueue.http import Keys, Settings, create_app
from aiozkqueue.http.client import QueueServiceClient
from aiozkqueue.http.core.names import Kind
from aiozkqueue.http.discovery import ROOT, Registration, folder
from aiozkqueue.http.discovery import registered as registration_of
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import EmbeddedZooKeeper, ServerOptions
from aiozkqueue.zookeeper import Create, CreateAs
from aiozkqueue.zookeeper.auth import Acl, Permission
from tests.http.conftest import NOBODY, polled, serving
from tests.http.test_killed_servers import process
from tests.integration.queue.conftest import eventually
from tests.observer import observer

if TYPE_CHECKING:
    from aiozkqueue.testing import EmbeddedNode, ZooKeeperProxy
    from tests.observer import Observer

pytestmark = pytest.mark.timeout(240)


def registered(cluster: str) -> list[str]:
    return [f"/ostrich/{cluster}-emodb-{kind}-1" for kind in ("queue", "dedupq")]


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
async def test_a_server_asked_to_stop_withdraws_drains_closes_its_session_and_exits_cleanly(
    zookeeper: str, queue_root: str, key: str, session: zq.QueueSession, kind: signal.Signals
) -> None:
    await session.queue("q").configure(zq.QueueConfig(shards=1))  # creates the queue, so that a poll waits
    cluster = f"stops-{time.time_ns()}"
    options = ("--cluster", cluster, "--session-timeout", "30")
    async with observer(zookeeper) as observed, process(zookeeper, queue_root, *options) as (url, server):
        folders = registered(cluster)
        for folder in folders:
            await observed.until_there(f"{folder}/{url.removeprefix('http://')}")
        async with QueueServiceClient(url, key=key, timeout=90) as queues:
            polling = asyncio.create_task(queues.poll("q", wait=60))
            await eventually(lambda: polled(session), 30)
            server.send_signal(kind)
            assert await polling == [], "a waiting poll gets a response"
            for folder in folders:
                assert await observed.children(folder) == [], "the server is no longer registered"
        async with asyncio.timeout(60):
            assert await asyncio.to_thread(server.wait) == 0
        # Its session has ended with it, not 30 s later, since it has no ephemeral znode any more.
        left = await observed.ephemerals(queue_root)
        assert set(left.values()) <= {core_of(session).zookeeper.session_id}


async def test_a_server_whose_credentials_are_refused_ends_so_that_it_is_started_again_with_new_ones(
    queue_root: str,
) -> None:
    options = ServerOptions(fsync=False, users={"shop": "old"})

    def change_password(node: EmbeddedNode) -> None:
        jaas = node.folder / "jaas.conf"
        jaas.write_text(jaas.read_text().replace("old", "new"))
        node.restart(60)

    async with (
        EmbeddedZooKeeper(options) as server,
        process(server.hosts, queue_root, "--auth", "sasl:shop:old") as (_, serving),
    ):
        await asyncio.to_thread(change_password, server.node)
        async with asyncio.timeout(60):
            assert await asyncio.to_thread(serving.wait) == 4


async def test_a_second_signal_aborts_requests_and_still_ends_the_application(
    zookeeper: str, queue_root: str, key: str, capfd: pytest.CaptureFixture[str]
) -> None:
    head = f"POST /queue/1/q/send HTTP/1.1\r\nHost: h\r\nX-BV-API-Key: {key}\r\nContent-Type: application/json\r\n"
    async with (
        process(zookeeper, queue_root) as (url, server),
        httpx.AsyncClient(base_url=url, verify=NOBODY) as client,
    ):
        host, _, port = url.removeprefix("http://").partition(":")
        answered, asking = await asyncio.open_connection(host, int(port))
        asking.write(f"{head}Expect: 100-continue\r\nContent-Length: 9\r\n\r\n1".encode())  # an incomplete body
        assert (await answered.readline()).startswith(b"HTTP/1.1 100 ")  # the request is active
        server.send_signal(signal.SIGTERM)

        async def stopping() -> bool:
            try:
                await client.get("/live")
            except httpx.TransportError:
                return True
            return False

        await eventually(stopping, 30)
        assert server.poll() is None
        server.send_signal(signal.SIGTERM)
        async with asyncio.timeout(15):  # less than the 20 s for active requests
            assert await asyncio.to_thread(server.wait) == 0
        asking.transport.abort()
    assert "lifespan" not in (await asyncio.to_thread(capfd.readouterr)).err


async def test_a_server_that_is_stopped_while_it_connects_exits_cleanly(queue_root: str) -> None:
    port, _ = free_ports()
    command = [sys.executable, "-m", "aiozkqueue", "serve", "--port", str(port), "--root", queue_root]
    unreachable = ("--hosts", "127.0.0.1:1", "--connect-timeout", "300")
    server = await asyncio.create_subprocess_exec(*command, *unreachable, stderr=asyncio.subprocess.DEVNULL)
    try:

        async def listens() -> bool:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                return False
            writer.close()
            return True

        await eventually(listens, 60)
        server.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            assert await server.wait() == 0
    finally:
        if server.returncode is None:
            server.kill()
            await server.wait()


async def test_a_server_that_lost_zookeeper_can_be_stopped(zookeeper_proxy: ZooKeeperProxy, queue_root: str) -> None:
    async with process(zookeeper_proxy.hosts, queue_root, "--cluster", "alone") as (_, server):
        zookeeper_proxy.stall()
        server.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            assert await asyncio.to_thread(server.wait) == 0


async def admin_url(zookeeper: str, cluster: str) -> str:
    """Return the admin URL of a registration, as Ostrich's clients read it."""
    async with observer(zookeeper) as observed:
        folder = registered(cluster)[0]

        async def announced() -> bool:
            return bool(await observed.children(folder))

        await eventually(announced, 30)
        (name,) = await observed.children(folder)
        entry = json.loads(await observed.get(f"{folder}/{name}"))
    url: str = json.loads(entry["payload"])["adminUrl"]
    return url


async def test_the_announced_admin_port_reports_the_health_of_the_server(zookeeper: str, queue_root: str) -> None:
    cluster = f"asked-{time.time_ns()}"
    async with process(zookeeper, queue_root, "--cluster", cluster) as (url, _):
        asked = await admin_url(zookeeper, cluster)
        assert asked != url
        async with httpx.AsyncClient(base_url=asked, timeout=30, verify=NOBODY) as client:
            assert (await client.head("/healthcheck")).status_code == 200
            healthy = await client.get("/healthcheck")
            assert (healthy.status_code, healthy.json()) == (200, {"zookeeper": {"healthy": True}})
            for path in ("live", "ready", "ping"):
                assert (await client.get(f"/{path}")).status_code == 200
            assert (await client.get("/queue/1/q/size")).status_code == 404


async def test_the_admin_port_serves_metrics_to_the_same_keys_as_the_main_port(
    zookeeper: str, queue_root: str, session: zq.QueueSession
) -> None:
    ports, keys = free_ports(), Keys(core_of(session))
    every, some = await keys.create("every", ["queue|get_status|*"]), await keys.create("some", ["queue|poll|*"])
    async with process(zookeeper, queue_root, "--port", str(ports[0])) as (url, _):
        for address in (url, f"http://127.0.0.1:{ports[0] + 1}"):
            async with httpx.AsyncClient(base_url=address, timeout=30, verify=NOBODY) as client:
                metrics = await client.get("/metrics", headers={"X-BV-API-Key": every})
                assert metrics.status_code == 200
                assert "aiozkqueue_http_requests" in metrics.text
                for key in (some, ""):
                    assert (await client.get("/metrics", headers={"X-BV-API-Key": key})).status_code == 403


async def test_the_admin_port_defaults_to_the_one_after_the_server_port(zookeeper: str, queue_root: str) -> None:
    ports = free_ports()
    async with process(zookeeper, queue_root, "--port", str(ports[0])) as (url, _):
        assert url.endswith(f":{ports[0]}")
        async with httpx.AsyncClient(timeout=30, verify=NOBODY) as client:
            assert (await client.head(f"http://127.0.0.1:{ports[0] + 1}/healthcheck")).status_code == 200
    cluster = f"announced-{time.time_ns()}"
    options = ("--admin-port", str(ports[1]), "--cluster", cluster, "--advertise", "queues.example:80")
    async with process(zookeeper, queue_root, *options) as (_, _server):
        assert await admin_url(zookeeper, cluster) == f"http://queues.example:{ports[1]}"
        async with httpx.AsyncClient(timeout=30, verify=NOBODY) as client:
            assert (await client.get(f"http://127.0.0.1:{ports[1]}/healthcheck")).status_code == 200


async def test_the_server_port_serves_health_checks_if_the_next_port_is_taken(zookeeper: str, queue_root: str) -> None:
    port, _ = free_ports()
    cluster = f"taken-{time.time_ns()}"
    with socket.create_server(("127.0.0.1", port + 1)):
        options = ("--port", str(port), "--cluster", cluster)
        async with process(zookeeper, queue_root, *options) as (url, _):
            assert await admin_url(zookeeper, cluster) == url
            async with httpx.AsyncClient(base_url=url, timeout=30, verify=NOBODY) as client:
                assert (await client.head("/healthcheck")).status_code == 200


def free_ports() -> tuple[int, int]:
    """Return two free ports; the port after the first one is free, too."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
            port = first.getsockname()[1]
            try:
                with socket.create_server(("127.0.0.1", port + 1)):
                    return port, second.getsockname()[1]
            except OSError:
                continue


async def test_without_zookeeper_a_server_is_not_healthy(
    zookeeper_proxy: ZooKeeperProxy, queue_root: str, key: str
) -> None:
    async with (
        serving(zookeeper_proxy.hosts, queue_root, Settings()) as url,
        httpx.AsyncClient(base_url=url, headers={"X-BV-API-Key": key}, timeout=60, verify=NOBODY) as client,
    ):
        assert (await client.head("/healthcheck")).status_code == 200
        zookeeper_proxy.refuse()
        zookeeper_proxy.reset_connections()

        async def unhealthy() -> bool:
            return (await client.head("/healthcheck")).status_code == 503

        await eventually(unhealthy, 60)
        await asyncio.sleep(1.5)  # requests wait out shorter interruptions
        begun = time.monotonic()
        for _ in range(5):
            assert (await client.post("/queue/1/q/send", json=1)).status_code == 503
        assert time.monotonic() - begun < 5, "requests are refused at once while ZooKeeper is known to be unreachable"


async def test_an_outage_of_both_sessions_of_a_server_is_logged_once(
    zookeeper_proxy: ZooKeeperProxy, queue_root: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # The next message would follow after five minutes.
    monkeypatch.setattr("aiozkqueue.zookeeper.outage._FIRST", (1.5,))
    caplog.set_level(logging.INFO, "aiozkqueue.zookeeper")

    def lines(text: str) -> list[str]:
        return [line for record in caplog.records if text in (line := record.getMessage())]

    async with serving(zookeeper_proxy.hosts, queue_root, Settings()):
        caplog.clear()
        zookeeper_proxy.refuse()
        zookeeper_proxy.reset_connections()

        async def outage_logged() -> bool:
            return bool(lines("no connection to "))

        await eventually(outage_logged, 60)
        await asyncio.sleep(3)  # time for each session to try again
        await zookeeper_proxy.listen()

        async def resumed() -> bool:
            return bool(lines("resumed session")) and zookeeper_proxy.connections == 2

        await eventually(resumed, 60)
        await asyncio.sleep(1)  # time for both sessions to be established
        assert [len(lines(text)) for text in ("lost", "no connection to ", "resumed session")] == [1, 1, 1], caplog.text


async def test_an_outage_of_the_session_for_listings_alone_is_logged(
    zookeeper: str,
    zookeeper_proxy: ZooKeeperProxy,
    queue_root: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("aiozkqueue.zookeeper.outage._FIRST", (1.5,))
    caplog.set_level(logging.INFO, "aiozkqueue.zookeeper")
    app = create_app(
        lambda: zq.connect(zookeeper, root=queue_root, session_timeout=20),
        listing=lambda: zq.connect(zookeeper_proxy.hosts, root=queue_root, session_timeout=20),
    )
    async with app.router.lifespan_context(app):
        zookeeper_proxy.refuse()
        zookeeper_proxy.reset_connections()

        async def outage_logged() -> bool:
            return "no connection to " in caplog.text

        await eventually(outage_logged, 60)
        await zookeeper_proxy.listen()

        async def resumed() -> bool:
            return "resumed session" in caplog.text

        await eventually(resumed, 60)


async def test_a_send_while_zookeeper_is_frozen_is_refused_after_its_patience(
    zookeeper_proxy: ZooKeeperProxy, queue_root: str, key: str
) -> None:
    async with (
        serving(zookeeper_proxy.hosts, queue_root, Settings(request_timeout=3)) as url,
        httpx.AsyncClient(base_url=url, headers={"X-BV-API-Key": key}, timeout=60, verify=NOBODY) as client,
    ):
        assert (await client.post("/queue/1/q/send", json=1)).status_code == 200
        zookeeper_proxy.stall()
        begun = time.monotonic()
        answer = await client.post("/queue/1/q/send", json=2)
        took = time.monotonic() - begun
        assert (answer.status_code, int(answer.headers["Retry-After"]) > 0) == (503, True)
        assert took < 8, "the client does not wait for the end of an abandoned commit, up to ten seconds later"
        zookeeper_proxy.heal()


async def test_a_server_that_ends_leaves_the_registration_of_its_successor_at_the_same_address(
    session: zq.QueueSession, zookeeper: str, queue_root: str, server_view: Observer
) -> None:
    registration = Registration(f"same-{time.time_ns()}", "host:1", "host:2")
    path = f"{folder(registration.cluster, Kind.DEDUPQ)}/host:1"

    async with zq.connect(zookeeper, root=queue_root) as other, AsyncExitStack() as successor:
        async with registration_of(core_of(session), registration) as withdraw:
            await server_view.until_there(path)

            async def is_of_successor() -> bool:
                owners = await server_view.ephemerals(folder(registration.cluster, Kind.DEDUPQ))
                return owners == {path: core_of(other).zookeeper.session_id}

            await successor.enter_async_context(registration_of(core_of(other), registration))
            await eventually(is_of_successor)
            await withdraw()
        assert await is_of_successor()
        assert await server_view.exists(f"{folder(registration.cluster, Kind.QUEUE)}/host:1")
    assert not await server_view.exists(path)


@pytest.mark.parametrize("stale", [False, True])
async def test_a_registration_that_an_acl_refuses_is_logged_with_its_remedy(
    session: zq.QueueSession, caplog: pytest.LogCaptureFixture, *, stale: bool
) -> None:
    """The removal of a stale entry is refused, or the creation of the server's own entry if there is no stale one."""
    zookeeper = core_of(session).zookeeper
    registration = Registration(f"refused-{time.time_ns()}", "host:1", "host:2")
    path = folder(registration.cluster, Kind.QUEUE)
    await zookeeper.ensure(ROOT)
    permissions = Permission.READ | Permission.CREATE if stale else Permission.READ
    await zookeeper.multi([CreateAs.like([Acl("world", "anyone", permissions)], path, b"")])
    if stale:
        await zookeeper.multi([Create(f"{path}/host:1")])

    async def logged() -> bool:
        return "no client finds this server: its registration host:1 is refused" in caplog.text

    async with registration_of(core_of(session), registration):
        await eventually(logged, 30)
