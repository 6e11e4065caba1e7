"""Slow, huge, malformed or vanished clients, and an unavailable ZooKeeper, do not affect other requests."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx
import psutil
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.routing import Mount

import aiozkqueue as zq
from aiozkqueue.http import Keys, Settings, create_app
from aiozkqueue.http.messages import MessagesResponse
from aiozkqueue.session.internals import core_of
from tests.http.conftest import polled, serving
from tests.integration.queue.conftest import eventually
from tests.web.conftest import serving as in_uvicorn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.middleware.base import RequestResponseEndpoint
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from aiozkqueue.testing import ZooKeeperProxy
    from tests.http.conftest import Service, Starter

pytestmark = pytest.mark.timeout(180)

JSON = {"Content-Type": "application/json"}


@asynccontextmanager
async def raw(service: Service) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection on which a test sends raw bytes."""
    host, _, port = service.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()


def head(service: Service, line: str, **headers: str) -> bytes:
    fields = {"Host": "test", "X-BV-API-Key": service.key, "Content-Type": "application/json", **headers}
    lines = [f"{line} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode()


async def assert_still_serves(service: Service) -> None:
    """Assert that the server still serves other requests."""
    async with asyncio.timeout(30):
        assert (await service.post("/queue/1/others/send", json=1)).status_code == 200
        assert (await service.get("/queue/1/others/poll")).status_code == 200


# -- bad clients


@pytest.mark.parametrize("sent", [b"", b"GET /queue/1/q/size HTTP/1.1\r\nHost: x\r\n"], ids=["nothing", "half a head"])
async def test_a_client_that_stalls_in_its_request_is_disconnected(
    service: Service, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("aiozkqueue.http.server.HEAD_TIMEOUT", 0.5)
        async with raw(service) as (reader, writer), asyncio.timeout(60):
            writer.write(sent)
            assert await reader.read() == b""
    await assert_still_serves(service)


async def test_a_request_whose_body_never_arrives_ends(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("aiozkqueue.http.core.parameters.BODY_TIMEOUT", 0.5)
        async with raw(service) as (reader, writer), asyncio.timeout(60):
            writer.write(head(service, "POST /queue/1/q/send", **{"Content-Length": "10"}) + b"12")
            assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
    await assert_still_serves(service)


async def test_a_client_that_does_not_read_its_response_is_disconnected(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        await service.post("/queue/1/q/sendbatch", json=["x" * 30_000] * 250)
    monkeypatch.setattr("aiozkqueue.http.server.RESPONSE_TIMEOUT", 0.5)
    async with raw(service) as (reader, writer), asyncio.timeout(120):
        writer.write(head(service, "GET /queue/1/q/peek?limit=1000"))
        own = writer.get_extra_info("sockname")

        def cut_off() -> bool:
            return not any(connection.raddr == own for connection in psutil.Process().net_connections("tcp"))

        await eventually(lambda: asyncio.to_thread(cut_off), 90)
        taken = b""
        try:
            while chunk := await reader.read(1 << 20):
                taken += chunk
        except ConnectionResetError:
            pass
        assert len(taken) < 30_000_000
    await assert_still_serves(service)


async def test_a_body_that_is_too_large_is_refused_before_it_arrives(start: Starter) -> None:
    service = await start(Settings(body_limit=1000))
    for headers in ({"Content-Length": "1001"}, {"Content-Length": "9" * 18}, {"Transfer-Encoding": "chunked"}):
        async with raw(service) as (reader, writer), asyncio.timeout(60):
            writer.write(head(service, "POST /queue/1/q/send", **headers))
            if "Transfer-Encoding" in headers:
                writer.write(b"3e9\r\n" + b"1" * 1001 + b"\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
    await assert_still_serves(service)


async def test_a_request_with_too_many_messages_is_refused(start: Starter) -> None:
    service = await start(Settings(batch_limit=10))
    assert (await service.post("/queue/1/q/sendbatch", json=[1] * 11)).status_code == 413
    assert (await service.post("/queue/1/_sendbatch", json={"a": [1] * 6, "b": [1] * 5})).status_code == 413
    assert (await service.post("/queue/1/q/sendbatch", json=[1] * 10)).status_code == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"nonsense\r\n\r\n",
        b"GET / JUNK/1.1\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 200_000,
        b"POST /queue/1/q/send HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
        b"POST /queue/1/q/send HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    ],
    ids=["tls", "nonsense", "version", "long path", "many headers", "length", "two lengths"],
)
async def test_a_malformed_request_is_refused_and_its_connection_closed(service: Service, sent: bytes) -> None:
    async with raw(service) as (reader, writer), asyncio.timeout(30):
        try:
            writer.write(sent)
            answer = await reader.read()
        except ConnectionResetError:
            answer = b""
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    await assert_still_serves(service)


async def test_many_malformed_requests_are_logged_once(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiozkqueue.http.server.REPEAT_AFTER", 600)
    monkeypatch.setattr("aiozkqueue.http.server._QUIET_LINES._since", {})
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("uvicorn.error")
    logger.addHandler(handler)
    try:
        for _ in range(20):
            async with raw(service) as (reader, writer), asyncio.timeout(30):
                writer.write(b"no request\r\n\r\n")
                assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    finally:
        logger.removeHandler(handler)
    assert len(logged) == 1


async def test_a_request_cut_off_in_its_body_sends_no_message(service: Service) -> None:
    for end in ("close", "half"):
        async with raw(service) as (reader, writer), asyncio.timeout(60):
            writer.write(head(service, "POST /queue/1/q/sendbatch", **{"Content-Length": "100"}) + b"[1, 2, 3]")
            await writer.drain()
            if end == "half":
                writer.write_eof()
                assert await reader.read() == b""
    await assert_still_serves(service)
    assert (await service.get("/queue/1/q/size")).json() == 0


async def test_five_hundred_idle_connections_do_not_block_new_ones(service: Service) -> None:
    host, _, port = service.url.removeprefix("http://").partition(":")
    idle = [await asyncio.open_connection(host, int(port)) for _ in range(500)]
    try:
        await assert_still_serves(service)
    finally:
        for _, writer in idle:
            writer.close()


async def test_a_client_that_disconnects_while_it_polls_claims_nothing(service: Service) -> None:
    for number in range(20):
        async with raw(service) as (_, writer):
            writer.write(head(service, f"GET /queue/1/q/poll?wait=60&ttl=3600&limit={number + 1}"))
            await writer.drain()
            await asyncio.sleep(0.02 * (number % 5))
    await service.post("/queue/1/q/sendbatch", json=[1, 2, 3])
    polled: list[object] = []
    async with asyncio.timeout(30):
        while len(polled) < 3:
            polled += await service.poll("q", ttl=3600, wait=10)


async def test_messages_of_a_poll_that_disconnects_are_delivered_or_released(service: Service) -> None:
    for number in range(15):
        async with raw(service) as (reader, writer), asyncio.timeout(60):
            writer.write(head(service, "GET /queue/1/q/poll?wait=60&ttl=3600"))
            await writer.drain()
            await asyncio.sleep(0.2)
            sending = asyncio.create_task(service.post("/queue/1/q/send", json=number))
            await asyncio.sleep(0.002 * number)
            writer.write_eof()
            answer = await reader.read()
            await sending
            polled = await service.poll("q", wait=0 if b"payload" in answer else 30)
        assert len(polled) == (0 if b"payload" in answer else 1)
        assert (await service.http.delete("/queue/1/q")).status_code == 200


async def test_messages_of_a_poll_cut_off_before_its_response_are_released(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client disconnects after the claim, before the response; a write to its connection does not raise."""
    composing, compose = asyncio.Event(), MessagesResponse._parts

    async def late(response: MessagesResponse) -> list[bytes]:
        composing.set()
        await asyncio.sleep(0.3)
        return await compose(response)

    await service.post("/queue/1/q/send", json=1)
    monkeypatch.setattr(MessagesResponse, "_parts", late)
    async with raw(service) as (reader, writer), asyncio.timeout(60):
        writer.write(head(service, "GET /queue/1/q/poll?ttl=3600"))
        await composing.wait()
        writer.write_eof()
        assert b"payload" not in await reader.read()
    monkeypatch.undo()
    assert len(await service.poll("q", wait=10)) == 1


async def test_messages_of_a_poll_cut_off_behind_a_middleware_are_released(
    zookeeper: str, queue_root: str, session: zq.QueueSession, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same in a user's application: its server returns only messages, and a middleware passes them on."""
    composing, compose = asyncio.Event(), MessagesResponse._parts
    receives: list[Receive] = []
    service = create_app(lambda: zq.connect(zookeeper, root=queue_root, session_timeout=20))

    async def late(response: MessagesResponse) -> list[bytes]:
        composing.set()
        while (await receives[-1]())["type"] != "http.disconnect":
            pass
        return await compose(response)

    async def passed(request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        receives.append(receive)
        await outer(scope, receive, send)

    @asynccontextmanager
    async def running(_: Starlette) -> AsyncIterator[None]:
        async with service.router.lifespan_context(service):
            yield

    outer = Starlette(
        routes=[Mount("/queues", service)],
        middleware=[Middleware(BaseHTTPMiddleware, dispatch=passed)],
        lifespan=running,
    )
    await session.queue("q").put(b"1")
    monkeypatch.setattr(MessagesResponse, "_parts", late)
    async with in_uvicorn(application) as (host, port), asyncio.timeout(60):
        _, writer = await asyncio.open_connection(host, port)
        request = f"GET /queues/queue/1/q/poll?ttl=3600 HTTP/1.1\r\nHost: x\r\nX-BV-API-Key: {key}\r\n\r\n"
        writer.write(request.encode())
        await composing.wait()
        writer.close()
        assert await session.queue("q").leases.take(1, lifetime=30, timeout=30)


# -- limits


async def test_a_key_above_its_rate_gets_a_retry_after(start: Starter, session: zq.QueueSession) -> None:
    service = await start(Settings(rate=1))  # a lower rate than the requests of any machine
    other = await Keys(core_of(session)).create("other", ["queue|*|*"])
    answers = [await service.get("/queue/1/q/size") for _ in range(40)]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused
    assert int(refused[0].headers["Retry-After"]) >= 1
    assert (await service.get("/queue/1/q/size", headers={"X-BV-API-Key": other})).status_code == 200
    await asyncio.sleep(int(refused[0].headers["Retry-After"]) + 0.5)
    assert (await service.get("/queue/1/q/size")).status_code == 200


async def test_every_request_needs_a_key_by_default(start: Starter) -> None:
    closed, opened = await start(), await start(Settings(anonymous=("queue|get_status|public*",)))
    for service in (closed, opened):
        service.http.headers.pop("X-BV-API-Key")
    assert (await closed.get("/queue/1/public/size")).status_code == 403
    assert (await opened.get("/queue/1/public/size")).json() == 0
    assert (await opened.get("/queue/1/private/size")).status_code == 403
    assert (await opened.get("/queue/1/public/poll")).status_code == 403
    assert (await opened.get("/queue/1/public/size", headers={"X-BV-API-Key": "wrong"})).status_code == 403


async def test_no_secret_is_logged(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    for server_side in ("uvicorn", "uvicorn.access", "uvicorn.error", "aiozkqueue"):
        caplog.set_level("DEBUG", logger=server_side)
    async with httpx.AsyncClient(base_url=service.url, timeout=30) as client:
        logs = client.get
        assert (await logs("/queue/1/q/size", params={"APIKey": service.key})).status_code == 200
        assert (await logs("/queue/1/q/size", params={"APIKey": "a-wrong-key"})).status_code == 403
        assert (await client.post("/queue/1/q/send", json="payload", headers={"X-BV-API-Key": service.key})).is_success
    ours = "\n".join(
        record.getMessage() for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))
    )
    for secret in (service.key, "a-wrong-key", "payload"):
        assert secret not in ours


# -- ZooKeeper unreachable, and servers that stop


async def test_a_defect_that_ends_a_task_of_the_server_is_logged(
    start: Starter, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look(*_: object) -> None:
        raise ZeroDivisionError

    async def logged() -> bool:
        return "figures of the queues: this task has failed; restart the server" in caplog.text

    monkeypatch.setattr("aiozkqueue.sampling.Sampler.sample_all", look)
    await start()
    await eventually(logged, 30)
    assert "ZeroDivisionError" in caplog.text


async def test_metrics_without_a_key_show_that_zookeeper_is_unreachable(
    start: Starter, zookeeper_proxy: ZooKeeperProxy
) -> None:
    """Prometheus scrapes the metrics during the outage, when the server cannot check a key."""
    service = await start(Settings(anonymous=("queue|get_status|*",)), hosts=zookeeper_proxy.hosts)
    async with httpx.AsyncClient(base_url=service.url, timeout=30) as prometheus:
        assert 'aiozkqueue_session_state{state="connected"} 1.0' in (await prometheus.get("/metrics")).text
        zookeeper_proxy.refuse()
        zookeeper_proxy.reset_connections()

        async def unreachable() -> bool:
            return (await prometheus.get("/ready")).status_code == 503

        await eventually(unreachable, 30)
        answer = await prometheus.get("/metrics")
        assert (answer.status_code, 'aiozkqueue_session_state{state="connected"} 0.0' in answer.text) == (200, True)
        assert (await service.get("/metrics")).status_code == 503
    await zookeeper_proxy.listen()


async def test_requests_get_a_retry_after_while_zookeeper_is_unreachable(
    start: Starter, zookeeper_proxy: ZooKeeperProxy
) -> None:
    service = await start(Settings(request_timeout=0.5), hosts=zookeeper_proxy.hosts)

    async def served() -> bool:
        sent = await service.post("/queue/1/others/send", json=1)
        return sent.status_code == 200 and (await service.get("/queue/1/others/poll")).status_code == 200

    await eventually(served, 60)  # the short timeout may not suffice on a busy machine
    assert (await service.get("/ready")).status_code == 200
    zookeeper_proxy.refuse()
    zookeeper_proxy.reset_connections()

    async def unready() -> bool:
        return (await service.get("/ready")).status_code == 503

    await eventually(unready, 60)
    for method, path in (("GET", "poll"), ("GET", "size"), ("POST", "send"), ("POST", "ack")):
        body: list[str] | None = [] if method == "POST" else None
        answer = await service.http.request(method, f"/queue/1/q/{path}", json=body)
        assert answer.status_code == 503
        assert int(answer.headers["Retry-After"]) > 0
        assert "ZooKeeper" in answer.json()["message"]
    assert (await service.get("/live")).status_code == 200
    assert (await service.get("/ping")).text == "pong"
    await zookeeper_proxy.listen()
    await eventually(served, 60)


async def test_a_server_that_stops_answers_its_waiting_polls(
    zookeeper: str, queue_root: str, key: str, session: zq.QueueSession
) -> None:
    await session.queue("q").configure(zq.QueueConfig(shards=1))  # creates the queue, so that a poll waits
    async with httpx.AsyncClient(headers={"X-BV-API-Key": key}, timeout=120) as client:
        async with serving(zookeeper, queue_root, Settings()) as url:
            polling = asyncio.create_task(client.get(f"{url}/queue/1/q/poll?wait=60"))
            await eventually(lambda: polled(session), 30)
            begun = time.monotonic()
        answer = await polling
        assert (answer.status_code, answer.json()) == (200, [])
        assert time.monotonic() - begun < 50
