"""aiozk's public client on this package's session: what its users know, and what they are spared."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from aiozk import ACL, WatchEvent, exc

from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.testing import Opcode
from aiozkqueue.zookeeper import Auth
from aiozkqueue.zookeeper.aiozk_client import Client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiozkqueue.testing import ZooKeeperProxy
    from tests.integration.zookeeper.conftest import SecureServer


@asynccontextmanager
async def started(servers: str, *arguments: Any, **options: Any) -> AsyncIterator[Client]:
    client = Client(servers, *arguments, **options)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def test_the_calls_that_aiozk_has_do_what_they_say(zookeeper: str, queue_root: str) -> None:
    async with started(zookeeper + queue_root, "/inner") as client:
        assert await client.create("/a", b"1") == "/a"
        assert await client.create("/a/s-", "2", sequential=True, ephemeral=True) == "/a/s-0000000000"
        data, stat = await client.get("/a")
        assert (data, stat.version, stat.num_children) == (b"1", 0, 1)
        assert (await client.set("/a", b"3", 0)).version == 1
        assert await client.get_data("/a") == b"3"
        assert await client.get_children("/a") == ["s-0000000000"]
        assert (await client.exists("/a"), await client.exists("/b")) == (True, False)
        await client.set_acl("/a", [ACL.make("world", "anyone", read=True, delete=True)])
        assert [acl.perms for acl in await client.get_acl("/a")] == [9]
        await client.ensure_path("/x/y/z")
        with pytest.raises(exc.NodeExists):
            await client.create("/x")
        with pytest.raises(exc.BadVersion):
            await client.set("/x", b"", 9)
        with pytest.raises(exc.NotEmpty):
            await client.delete("/x")
        with pytest.raises(exc.NoNode):
            await client.get("/gone")
        await client.deleteall("/x")
    async with started(zookeeper, queue_root) as outer:
        assert await outer.get_children("/inner/a") == []


async def test_a_transaction_gives_each_result_or_names_what_failed(zookeeper: str, queue_root: str) -> None:
    async with started(zookeeper + queue_root) as client:
        transaction = client.begin_transaction()
        transaction.create("/s-", b"", sequential=True)
        transaction.create("/s-", b"", sequential=True)
        transaction.create("/n")
        transaction.set_data("/n", b"x", 0)
        transaction.check_version("/n", 1)
        transaction.delete("/n")
        result = await transaction.commit()
        assert result.created == {"/s-0000000000", "/s-0000000001", "/n"}
        assert (result.updated, result.checked, result.deleted) == ({"/n"},) * 3
        assert result.results[:2] == ["/s-0000000000", "/s-0000000001"]
        assert result.results[3].version == 1

        refused = client.begin_transaction()
        refused.create("/y")
        refused.delete("/gone")
        failed = await refused.commit()
        assert not bool(failed)
        assert [type(error) for error in failed.results] == [exc.RolledBack, exc.NoNode]
        assert not await client.exists("/y")
        with pytest.raises(exc.TransactionFailed) as raised:
            async with client.begin_transaction() as left:
                left.create("/s-0000000000")
        assert isinstance(raised.value.__cause__, exc.NodeExists)
        with pytest.raises(ValueError, match="No operations"):
            await client.begin_transaction().commit()


@pytest.mark.parametrize("lose", ["lose_before", "lose_after"])
async def test_a_write_is_sent_once_and_a_read_as_often_as_it_takes(
    zookeeper_proxy: ZooKeeperProxy, queue_root: str, lose: str
) -> None:
    async with started(zookeeper_proxy.hosts + queue_root) as client:
        fault = getattr(zookeeper_proxy, lose)(Opcode.MULTI)
        transaction = client.begin_transaction()
        transaction.create("/s-", sequential=True)
        with pytest.raises(exc.ConnectError):
            await transaction.commit()
        assert len(fault.requests) == 1
        getattr(zookeeper_proxy, lose)(Opcode.GET_CHILDREN2, times=2)
        assert len(await client.get_children("/")) == (lose == "lose_after")


async def test_one_shot_watches_and_recipes_live_through_a_reconnection(
    zookeeper_proxy: ZooKeeperProxy, queue_root: str
) -> None:
    async with (
        started(zookeeper_proxy.hosts + queue_root) as client,
        started(zookeeper_proxy.hosts + queue_root) as other,
    ):
        lock, same = client.recipes.Lock("/lock"), other.recipes.Lock("/lock")
        await lock.acquire()
        waiting = asyncio.create_task(same.acquire())
        await asyncio.sleep(0.1)
        zookeeper_proxy.reset_connections()
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await lock.release()
        await asyncio.wait_for(waiting, 30)
        await same.release()
        changed = client.wait_for_events([WatchEvent.DATA_CHANGED], "/lock")
        await client.get("/lock", watch=True)
        await other.set_data("/lock", b"x", force=True)
        await asyncio.wait_for(changed, 30)


async def test_no_server_bad_hosts_and_bad_credentials_are_told_in_time(
    zookeeper: str, secure_server: SecureServer
) -> None:
    began = time.monotonic()
    with pytest.raises(exc.NoServersError, match=r"127\.0\.0\.1:1"):
        await Client("127.0.0.1:1", connect_timeout=0.2).start()
    with pytest.raises(exc.AuthFailed):
        await Client(secure_server.hosts, auth=[Auth.sasl("alice", "wrong")]).start()
    assert time.monotonic() - began < 10  # without being told, it is 15
    with pytest.raises(InvalidOptionError):
        Client("h1:x")
    async with started(zookeeper) as client:
        pass
    with pytest.raises(exc.ZKError, match="closed"):
        await client.create("/x")


async def test_what_is_too_large_is_refused_here(zookeeper: str, queue_root: str) -> None:
    async with started(zookeeper + queue_root) as client:
        with pytest.raises(exc.ZKError, match="the server takes"):
            await client.create("/big", bytes(1_100_000))
        assert await client.get_children("/") == []
