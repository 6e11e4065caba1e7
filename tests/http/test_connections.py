"""Connections: the limits on their number and on the time in each state."""

from __future__ import annotations

import asyncio
import socket
import statistics
import time
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.http import Settings
from aiozkqueue.http.connection_limit import ConnectionLimit
from aiozkqueue.http.listening import listen, most_connections
from tests.http.conftest import polled
from tests.http.test_robustness import assert_still_serves, head, raw
from tests.integration.queue.conftest import eventually

if TYPE_CHECKING:
    import aiozkqueue as zq
    from tests.http.conftest import Service, Starter

pytestmark = pytest.mark.timeout(180)


async def test_accepted_connections_send_without_delay() -> None:
    accepted = asyncio.get_running_loop().create_future()

    def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set_result(writer)

    with listen("127.0.0.1", 0) as listening:
        async with await asyncio.start_server(accept, sock=listening):
            _, writer = await asyncio.open_connection(*listening.getsockname())
            served = (await accepted).get_extra_info("socket")
            assert served.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            writer.close()
            (await accepted).close()


async def test_responses_on_a_kept_connection_arrive_at_once(service: Service) -> None:
    took: list[float] = []
    async with raw(service) as (reader, writer), asyncio.timeout(60):
        for _ in range(40):
            begun = time.perf_counter()
            writer.write(head(service, "GET /ping"))
            await reader.readuntil(b"\r\n\r\npong")
            took.append(time.perf_counter() - begun)
    assert statistics.median(took) < 0.035, "an answer that waits for an acknowledgement takes 40 ms"


async def test_an_unread_body_does_not_keep_a_connection_open(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiozkqueue.http.server.UNREAD_BODY_TIMEOUT", 0.5)
    async with raw(service) as (reader, writer), asyncio.timeout(60):
        writer.write(head(service, "POST /nonexist", **{"Content-Length": "1000000000"}))
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 404 ")
        assert b"connection: close" in answer.lower()

        async def drip() -> None:
            while True:
                writer.write(b"x")
                await asyncio.sleep(0.1)

        dripping = asyncio.create_task(drip())
        with suppress(ConnectionResetError):
            await reader.read()
        dripping.cancel()
    await assert_still_serves(service)


async def test_an_early_response_reaches_a_client_that_is_still_sending(service: Service) -> None:
    body = b"x" * (3 * 1024 * 1024)
    async with raw(service) as (reader, writer), asyncio.timeout(60):
        writer.write(head(service, "POST /queue/1/q/send", **{"Content-Length": str(len(body))}))
        writer.write(body)
        await writer.drain()
        assert (await reader.read()).startswith(b"HTTP/1.1 413 ")


async def test_a_refused_request_keeps_its_connection_if_its_body_was_read(service: Service) -> None:
    async with raw(service) as (reader, writer), asyncio.timeout(60):
        for _ in range(3):
            writer.write(head(service, "POST /queue/1/q/send", **{"Content-Length": "1"}) + b"{")
            assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
            await reader.readuntil(b'"}')


@pytest.mark.parametrize("length", ["1", "3", "1000"])
async def test_a_body_with_two_lengths_is_refused_and_ends_the_connection(service: Service, length: str) -> None:
    """A proxy may follow the other length, and take the rest of the body for the request of another client."""
    async with raw(service) as (reader, writer), asyncio.timeout(60):
        lengths = {"Content-Length": length, "Transfer-Encoding": "chunked"}
        writer.write(head(service, "POST /queue/1/q/send", **lengths, **{"Content-Type": "application/json"}))
        writer.write(b"1\r\n1\r\n0\r\n\r\n" + head(service, "GET /ping"))
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1
    assert b"Content-Length and Transfer-Encoding" in answer
    assert (await service.http.get("/queue/1/q/size")).json() == 0


@pytest.mark.parametrize("size", [40_000, 64_000])
async def test_a_too_long_head_is_refused_even_if_it_arrives_at_once(service: Service, size: int) -> None:
    async with raw(service) as (reader, writer), asyncio.timeout(60):
        writer.write(head(service, "GET /ping", Long="x" * size))
        assert (await reader.readline()).split()[1] in {b"400", b"431"}


async def test_a_head_sent_byte_by_byte_is_cut_off(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiozkqueue.http.server.HEAD_TIMEOUT", 1.0)
    async with raw(service) as (reader, writer), asyncio.timeout(60):
        writer.write(head(service, "GET /ping"))  # the limit also applies to the second request of a connection
        await reader.readuntil(b"pong")

        async def drip() -> None:
            for byte in b"GET /ping HTTP/1.1\r\n" + b"a: b\r\n" * 1000:
                writer.write(bytes([byte]))
                await asyncio.sleep(0.1)

        dripping = asyncio.create_task(drip())
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        dripping.cancel()


@pytest.mark.slow
async def test_an_idle_connection_is_kept_longer_than_proxies_keep_theirs(service: Service) -> None:
    async with raw(service) as (reader, writer), asyncio.timeout(60):
        for _ in range(2):
            writer.write(head(service, "GET /ping"))
            await reader.readuntil(b"pong")
            await asyncio.sleep(6)  # uvicorn's default limit is 5 s
        writer.write(head(service, "GET /ping"))
        await reader.readuntil(b"pong")


async def test_connections_without_a_request_do_not_block_others(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiozkqueue.http.server.MOST_CONNECTIONS", 20)
    service = await start()
    async with AsyncExitStack() as stack:
        for number in range(60):
            _, writer = await stack.enter_async_context(raw(service))
            writer.write(head(service, "GET /ping")[: number % 40])
            await writer.drain()
        await assert_still_serves(service)
        assert (await service.get("/live")).status_code == 200


async def test_the_server_reports_its_health_when_requests_take_all_connections(
    start: Starter, session: zq.QueueSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiozkqueue.http.server.MOST_CONNECTIONS", 8)
    service = await start()
    await session.queue("q").put(b"1")
    assert await service.poll("q", ttl=3600)
    async with AsyncExitStack() as stack:
        for _ in range(8):
            _, writer = await stack.enter_async_context(raw(service))
            writer.write(head(service, "GET /queue/1/q/poll?wait=60"))
            await writer.drain()
        await eventually(lambda: polled(session), 30)

        async def full() -> bool:
            async with raw(service) as (reader, writer):
                writer.write(head(service, "GET /queue/1/q/size"))
                return (await reader.readline()).startswith(b"HTTP/1.1 503 ")

        await eventually(full, 30)
        for path in ("live", "ready", "ping", "healthcheck"):
            async with raw(service) as (reader, writer), asyncio.timeout(30):
                writer.write(head(service, f"GET /{path}"))
                assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    await assert_still_serves(service)


async def test_the_number_of_connections_stays_below_the_file_descriptor_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 4096))
    assert most_connections(2000) < 1024
    assert most_connections(200) == 200


class TestConnectionLimit:
    """The choice of the connection to close."""

    def test_every_connection_stays_while_there_is_room(self) -> None:
        limit = ConnectionLimit[int](3, 2)
        assert [limit.enter(1, "a"), limit.enter(2, "a"), limit.enter(3, "b")] == [(True, None)] * 3

    def test_an_address_beyond_its_share_loses_its_own_idle_connection_first(self) -> None:
        limit = ConnectionLimit[int](10, 2)
        limit.enter(0, "b")
        for connection in (1, 2):
            limit.enter(connection, "a")
        assert limit.enter(3, "a") == (True, 1)
        limit.work(2)
        limit.work(3)
        assert limit.enter(4, "a") == (False, None)
        assert limit.enter(5, "b") == (True, None)

    def test_the_address_with_the_most_connections_loses_one_when_all_are_taken(self) -> None:
        limit = ConnectionLimit[int](4, 4)
        limit.enter(0, "b")
        for connection in (1, 2, 3):
            limit.enter(connection, "a")
        limit.work(1)
        assert limit.enter(4, "c") == (True, 2)
        limit.leave(2)  # the end of its connection is reported later
        assert len(limit) == 4

    def test_an_answered_connection_is_closed_before_one_that_has_sent_no_request(self) -> None:
        limit = ConnectionLimit[int](2, 2)
        limit.enter(1, "a")
        limit.enter(2, "a")
        limit.work(2)
        limit.finish(2)
        assert limit.enter(3, "a") == (True, 2)

    def test_running_requests_are_never_cut_off(self) -> None:
        limit = ConnectionLimit[int](2, 2)
        for connection in (1, 2):
            limit.enter(connection, "a")
            limit.work(connection)
        assert limit.enter(3, "b") == (False, None)
        limit.leave(3)
        limit.idle(2)
        assert limit.enter(4, "b") == (True, 2)


# -- the setting `patience`


async def test_the_time_of_a_slow_body_does_not_count_against_zookeeper(start: Starter) -> None:
    service = await start(Settings(request_timeout=1.0))
    async with raw(service) as (reader, writer), asyncio.timeout(60):
        writer.write(head(service, "POST /queue/1/q/send", **{"Content-Length": "4"}))
        for byte in b"1234":
            await asyncio.sleep(0.5)
            writer.write(bytes([byte]))
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    assert (await service.get("/queue/1/q/size")).json() == 1


async def test_a_too_slow_body_is_not_reported_as_a_zookeeper_failure(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiozkqueue.http.core.parameters.BODY_TIMEOUT", 1.0)
    service = await start(Settings(request_timeout=0.5))
    async with raw(service) as (reader, writer), asyncio.timeout(60):
        writer.write(head(service, "POST /queue/1/q/send", **{"Content-Length": "4"}) + b"1")
        assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")


async def test_a_client_that_reads_too_late_ends_no_claim_of_another_client(service: Service) -> None:
    async def claims(number: int) -> bool:
        return bool((await service.get("/queue/1/q/claimcount")).json() == number)

    await service.post("/queue/1/q/sendbatch", json=["x" * 30_000] * 400)
    async with raw(service) as (_, writer):
        # The response exceeds the buffers of a connection.
        writer.write(head(service, "GET /queue/1/q/poll?ttl=3&limit=400"))
        await eventually(partial(claims, 400))
        await eventually(partial(claims, 0))
        assert len(await service.poll("q", ttl=600, limit=400)) == 400
        writer.transport.abort()
    await asyncio.sleep(2)
    assert await claims(400)
    assert not await service.poll("q", ttl=600, limit=400)
