"""Connections: how long each may stay in which state, and how many there may be."""

from __future__ import annotations

import asyncio
import socket
import statistics
import time
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.http import Settings
from aiozkqueue.http.crowd import Crowd
from aiozkqueue.http.listening import listen, most_connections
from tests.http.conftest import polled
from tests.http.test_robustness import head, raw, works
from tests.integration.queue.conftest import eventually

if TYPE_CHECKING:
    import aiozkqueue as zq
    from tests.http.conftest import Service, Starter

pytestmark = pytest.mark.timeout(180)


async def test_what_is_accepted_sends_at_once() -> None:
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


async def test_answers_on_a_connection_that_is_kept_come_at_once(service: Service) -> None:
    took: list[float] = []
    async with raw(service) as (reader, writer), asyncio.timeout(60):
        for _ in range(40):
            begun = time.perf_counter()
            writer.write(head(service, "GET /ping"))
            await reader.readuntil(b"\r\n\r\npong")
            took.append(time.perf_counter() - begun)
    assert statistics.median(took) < 0.035, "40 ms is what an answer takes that waits for an acknowledgement"


async def test_a_body_that_nobody_reads_keeps_no_connection(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiozkqueue.http.server.FAREWELL", 0.5)
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
    await works(service)


async def test_an_answer_before_the_body_reaches_a_client_that_still_sends(service: Service) -> None:
    body = b"x" * (3 * 1024 * 1024)
    async with raw(service) as (reader, writer), asyncio.timeout(60):
        writer.write(head(service, "POST /queue/1/q/send", **{"Content-Length": str(len(body))}))
        writer.write(body)
        await writer.drain()
        assert (await reader.read()).startswith(b"HTTP/1.1 413 ")


async def test_a_request_whose_body_was_read_keeps_its_connection_even_when_it_is_refused(service: Service) -> None:
    async with raw(service) as (reader, writer), asyncio.timeout(60):
        for _ in range(3):
            writer.write(head(service, "POST /queue/1/q/send", **{"Content-Length": "1"}) + b"{")
            assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
            await reader.readuntil(b'"}')


@pytest.mark.parametrize("size", [40_000, 64_000])
async def test_a_head_that_is_too_long_is_refused_even_when_it_comes_at_once(service: Service, size: int) -> None:
    async with raw(service) as (reader, writer), asyncio.timeout(60):
        writer.write(head(service, "GET /ping", Long="x" * size))
        assert (await reader.readline()).split()[1] in {b"400", b"431"}


async def test_a_head_that_comes_a_byte_at_a_time_is_cut_off(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiozkqueue.http.server.HEAD_PATIENCE", 1.0)
    async with raw(service) as (reader, writer), asyncio.timeout(60):
        writer.write(head(service, "GET /ping"))  # the second request is no better than the first
        await reader.readuntil(b"pong")

        async def drip() -> None:
            for byte in b"GET /ping HTTP/1.1\r\n" + b"a: b\r\n" * 1000:
                writer.write(bytes([byte]))
                await asyncio.sleep(0.1)

        dripping = asyncio.create_task(drip())
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        dripping.cancel()


async def test_an_idle_connection_is_kept_for_longer_than_proxies_keep_theirs(service: Service) -> None:
    async with raw(service) as (reader, writer), asyncio.timeout(60):
        for _ in range(2):
            writer.write(head(service, "GET /ping"))
            await reader.readuntil(b"pong")
            await asyncio.sleep(6)  # uvicorn's own limit is 5 s
        writer.write(head(service, "GET /ping"))
        await reader.readuntil(b"pong")


async def test_connections_without_a_request_keep_nobody_out(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiozkqueue.http.server.MOST_CONNECTIONS", 20)
    service = await start()
    async with AsyncExitStack() as stack:
        for number in range(60):
            _, writer = await stack.enter_async_context(raw(service))
            writer.write(head(service, "GET /ping")[: number % 40])
            await writer.drain()
        await works(service)
        assert (await service.get("/live")).status_code == 200


async def test_when_requests_take_all_connections_the_server_still_says_that_it_is_well(
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
    await works(service)


async def test_there_are_no_more_connections_than_file_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 4096))
    assert most_connections(2000) < 1024
    assert most_connections(200) == 200


class TestCrowd:
    """Who has to go."""

    def test_while_there_is_room_everybody_stays(self) -> None:
        crowd = Crowd[int](3, 2)
        assert [crowd.enter(1, "a"), crowd.enter(2, "a"), crowd.enter(3, "b")] == [(True, None)] * 3

    def test_beyond_its_share_an_address_loses_its_own_idle_connection_first(self) -> None:
        crowd = Crowd[int](10, 2)
        crowd.enter(0, "b")
        for one in (1, 2):
            crowd.enter(one, "a")
        assert crowd.enter(3, "a") == (True, 1)
        crowd.work(2)
        crowd.work(3)
        assert crowd.enter(4, "a") == (False, None)
        assert crowd.enter(5, "b") == (True, None)

    def test_when_all_is_full_the_address_with_the_most_connections_makes_room(self) -> None:
        crowd = Crowd[int](4, 4)
        crowd.enter(0, "b")
        for one in (1, 2, 3):
            crowd.enter(one, "a")
        crowd.work(1)
        assert crowd.enter(4, "c") == (True, 2)
        crowd.leave(2)  # the end of its connection is heard of later
        assert len(crowd) == 4

    def test_a_connection_that_has_its_last_answer_goes_before_one_that_waits_for_its_first(self) -> None:
        crowd = Crowd[int](2, 2)
        crowd.enter(1, "a")
        crowd.enter(2, "a")
        crowd.work(2)
        crowd.finish(2)
        assert crowd.enter(3, "a") == (True, 2)

    def test_requests_under_way_are_never_cut_off(self) -> None:
        crowd = Crowd[int](2, 2)
        for one in (1, 2):
            crowd.enter(one, "a")
            crowd.work(one)
        assert crowd.enter(3, "b") == (False, None)
        crowd.leave(3)
        crowd.rest(2)
        assert crowd.enter(4, "b") == (True, 2)


# -- patience


async def test_a_slow_body_does_not_use_up_the_patience_with_zookeeper(start: Starter) -> None:
    service = await start(Settings(patience=1.0))
    async with raw(service) as (reader, writer), asyncio.timeout(60):
        writer.write(head(service, "POST /queue/1/q/send", **{"Content-Length": "4"}))
        for byte in b"1234":
            await asyncio.sleep(0.5)
            writer.write(bytes([byte]))
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    assert (await service.get("/queue/1/q/size")).json() == 1


async def test_a_body_that_is_too_slow_is_not_blamed_on_zookeeper(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiozkqueue.http.core.parameters.BODY_PATIENCE", 1.0)
    service = await start(Settings(patience=0.5))
    async with raw(service) as (reader, writer), asyncio.timeout(60):
        writer.write(head(service, "POST /queue/1/q/send", **{"Content-Length": "4"}) + b"1")
        assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
