"""The proxy applies a fault to exactly the chosen request, before or after ZooKeeper applied it."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.testing import Direction, Opcode, Request, ZooKeeperProxy
from tests.integration.testing.raw import session, text

if TYPE_CHECKING:
    from collections.abc import Callable

LOST = (ConnectionResetError, asyncio.IncompleteReadError)


@pytest.fixture
async def root(zookeeper: str, queue_root: str) -> str:
    async with session(zookeeper) as client:
        assert await client.create(queue_root) == 0
    return queue_root


async def applied(zookeeper: str, path: str) -> bool:
    """Return whether the path exists on the server, bypassing the proxy."""
    async with session(zookeeper) as client:
        return await client.exists(path)


def names(path: str) -> Callable[[Request], bool]:
    """Match the requests that contain this path."""
    return lambda request: text(path) in request.body


async def becomes_applied(zookeeper: str, path: str) -> None:
    async with asyncio.timeout(30):
        while not await applied(zookeeper, path):  # noqa: ASYNC110 -- no event reports it
            await asyncio.sleep(0.01)


async def test_a_request_lost_before_is_not_applied(zookeeper: str, zookeeper_proxy: ZooKeeperProxy, root: str) -> None:
    async with session(zookeeper_proxy.hosts) as client:
        fault = zookeeper_proxy.lose_before(Opcode.CREATE)
        with pytest.raises(LOST):
            await client.create(f"{root}/a")
        assert (await fault.struck()).opcode == Opcode.CREATE
    assert not await applied(zookeeper, f"{root}/a")


async def test_a_request_lost_after_is_applied(zookeeper: str, zookeeper_proxy: ZooKeeperProxy, root: str) -> None:
    async with session(zookeeper_proxy.hosts) as client:
        fault = zookeeper_proxy.lose_after(Opcode.CREATE)
        with pytest.raises(LOST):
            await client.create(f"{root}/a")
        await fault.struck()
    assert await applied(zookeeper, f"{root}/a")


async def test_a_fault_on_the_nth_request_leaves_earlier_requests_answered(
    zookeeper: str, zookeeper_proxy: ZooKeeperProxy, root: str
) -> None:
    async with session(zookeeper_proxy.hosts) as client:
        zookeeper_proxy.lose_before(Opcode.CREATE, nth=3)
        assert await client.create(f"{root}/1") == 0
        assert await client.create(f"{root}/2") == 0
        with pytest.raises(LOST):
            await client.create(f"{root}/3")
    assert await applied(zookeeper, f"{root}/2")
    assert not await applied(zookeeper, f"{root}/3")
    assert zookeeper_proxy.requests[Opcode.CREATE] == 3


async def test_only_the_pipelined_requests_before_the_lost_one_are_applied(
    zookeeper: str, zookeeper_proxy: ZooKeeperProxy, root: str
) -> None:
    """The server may not have read all of them when it sends its first replies."""
    for attempt in range(10):
        zookeeper_proxy.lose_before(names(f"{root}/{attempt}-40"))
        async with session(zookeeper_proxy.hosts) as client:
            for number in range(60):
                client.send_create(f"{root}/{attempt}-{number}")
            await client.ended()
        await becomes_applied(zookeeper, f"{root}/{attempt}-39")
        assert not await applied(zookeeper, f"{root}/{attempt}-40")
        assert not await applied(zookeeper, f"{root}/{attempt}-41")


async def test_a_fault_happens_the_given_number_of_times(zookeeper_proxy: ZooKeeperProxy, root: str) -> None:
    fault = zookeeper_proxy.lose_after(Opcode.CONNECT, times=2)
    for _ in range(2):
        with pytest.raises(LOST):
            async with session(zookeeper_proxy.hosts):
                pass
    async with session(zookeeper_proxy.hosts) as client:
        assert await client.exists(root)
    assert [request.connection for request in fault.requests] == [1, 2]


async def test_a_held_request_is_not_applied_until_released(
    zookeeper: str, zookeeper_proxy: ZooKeeperProxy, root: str
) -> None:
    fault = zookeeper_proxy.hold_request(Opcode.CREATE)
    async with session(zookeeper_proxy.hosts) as client:
        creating = asyncio.create_task(client.create(f"{root}/a"))
        await fault.struck()
        assert not await applied(zookeeper, f"{root}/a")
        fault.release()
        assert await creating == 0
    assert await applied(zookeeper, f"{root}/a")


async def test_a_held_reply_means_the_request_is_applied(
    zookeeper: str, zookeeper_proxy: ZooKeeperProxy, root: str
) -> None:
    fault = zookeeper_proxy.hold_reply(Opcode.CREATE)
    async with session(zookeeper_proxy.hosts) as client:
        creating = asyncio.create_task(client.create(f"{root}/a"))
        await fault.struck()
        assert await applied(zookeeper, f"{root}/a")
        assert not creating.done()
        zookeeper_proxy.heal()
        assert await creating == 0


async def test_a_released_fault_does_not_happen_again(zookeeper_proxy: ZooKeeperProxy, root: str) -> None:
    zookeeper_proxy.lose_before(Opcode.CREATE, times=None).release()
    async with session(zookeeper_proxy.hosts) as client:
        assert await client.create(f"{root}/a") == 0


async def test_frames_in_the_smallest_pieces_are_recognised(
    zookeeper: str, zookeeper_proxy: ZooKeeperProxy, root: str
) -> None:
    fault = zookeeper_proxy.lose_after(Opcode.CREATE)
    async with ZooKeeperProxy(zookeeper_proxy.hosts) as outer:
        outer.cut_after(10_000, Direction.TO_SERVER)  # only counts bytes here, and cuts nothing
        async with session(outer.hosts) as client:
            with pytest.raises(LOST):
                await client.create(f"{root}/a")
    await fault.struck()
    assert await applied(zookeeper, f"{root}/a")


async def test_a_request_whose_reply_is_truncated_is_applied(
    zookeeper: str, zookeeper_proxy: ZooKeeperProxy, root: str
) -> None:
    async with session(zookeeper_proxy.hosts) as client:
        zookeeper_proxy.cut_after(10, Direction.TO_CLIENT)
        with pytest.raises(asyncio.IncompleteReadError):
            await client.create(f"{root}/a")
    assert await applied(zookeeper, f"{root}/a")


async def test_a_truncated_request_is_not_applied(zookeeper: str, zookeeper_proxy: ZooKeeperProxy, root: str) -> None:
    async with session(zookeeper_proxy.hosts) as client:
        zookeeper_proxy.cut_after(20, Direction.TO_SERVER)
        with pytest.raises(LOST):
            await client.create(f"{root}/a")
    assert not await applied(zookeeper, f"{root}/a")


async def test_the_proxy_passes_four_letter_commands(zookeeper_proxy: ZooKeeperProxy) -> None:
    def ask() -> bytes:
        host, port = zookeeper_proxy.hosts.split(":")
        with socket.create_connection((host, int(port)), 30) as connection:
            connection.sendall(b"srvr")
            answer = b""
            while data := connection.recv(4096):
                answer += data
            return answer

    assert b"Mode: " in await asyncio.to_thread(ask)


async def test_an_exception_in_a_match_is_raised_when_the_proxy_closes(zookeeper: str) -> None:
    def wrong(request: Request) -> bool:
        raise ZeroDivisionError(request.opcode)

    proxy = await ZooKeeperProxy(zookeeper).__aenter__()
    proxy.lose_before(wrong)
    with pytest.raises(LOST):
        await session(proxy.hosts).__aenter__()
    with pytest.raises(ExceptionGroup) as failure:
        await proxy.__aexit__(None, None, None)
    assert failure.group_contains(ZeroDivisionError)
