"""A multi is sent until it is answered: lost before or after it is applied, cancelled, or with its session over."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from aiozkqueue.testing import Opcode, ZooKeeperProxy
from aiozkqueue.zookeeper import (
    Create,
    MultiError,
    NodeExistsError,
    SessionExpiredError,
    SetData,
    ZooKeeperClient,
    apply_until_answered,
    until_answered,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozkqueue.zookeeper import Result
    from tests.integration.zookeeper.conftest import Opener

DATA = b"of this request"


@pytest.fixture
async def zk(zookeeper_proxy: ZooKeeperProxy, queue_root: str, opened: Opener) -> ZooKeeperClient:
    return await opened(zookeeper_proxy.hosts + queue_root, session_timeout=20.0)


@pytest.fixture
def applied_ours(zk: ZooKeeperClient) -> Callable[[MultiError], Any]:
    """Return a function that tells whether the znode has the data of the request."""

    async def applied(refusal: MultiError) -> bool:
        assert isinstance(refusal.error, NodeExistsError)
        return (await zk.read("/one")).data == DATA

    return applied


async def test_a_multi_that_is_lost_before_it_is_applied_is_sent_again(
    zk: ZooKeeperClient, zookeeper_proxy: ZooKeeperProxy
) -> None:
    zookeeper_proxy.lose_before(Opcode.MULTI, times=3)
    assert await apply_until_answered(zk, [Create("/one", DATA)]) == ["/one"]


async def test_a_multi_whose_reply_is_lost_is_known_to_be_applied(
    zk: ZooKeeperClient, zookeeper_proxy: ZooKeeperProxy, applied_ours: Callable[[MultiError], Any]
) -> None:
    zookeeper_proxy.lose_after(Opcode.MULTI)
    assert await apply_until_answered(zk, [Create("/one", DATA)], applied=applied_ours) == []
    assert (await zk.read("/one")).data == DATA


async def test_a_refusal_after_a_lost_reply_is_raised_unless_the_stored_data_shows_the_request(
    zk: ZooKeeperClient, zookeeper_proxy: ZooKeeperProxy, applied_ours: Callable[[MultiError], Any]
) -> None:
    await zk.multi([Create("/one", b"of another client")])
    for applied in (None, applied_ours):
        zookeeper_proxy.lose_after(Opcode.MULTI)
        with pytest.raises(MultiError) as refusal:
            await apply_until_answered(zk, [Create("/one", DATA)], applied=applied)
        assert isinstance(refusal.value.error, NodeExistsError)


async def test_a_refusal_without_a_lost_reply_is_raised_without_another_read(zk: ZooKeeperClient) -> None:
    await zk.multi([Create("/one", DATA)])

    async def applied(_: MultiError) -> bool:
        raise AssertionError

    with pytest.raises(MultiError):
        await apply_until_answered(zk, [Create("/one", DATA)], applied=applied)


async def test_a_multi_without_a_generation_is_applied_in_the_next_session(
    zk: ZooKeeperClient, zookeeper_proxy: ZooKeeperProxy, end_session: Callable[[ZooKeeperClient], Any]
) -> None:
    held = zookeeper_proxy.hold_request(Opcode.MULTI)
    sending = asyncio.create_task(apply_until_answered(zk, [Create("/one", DATA)]))
    await held.struck()
    await end_session(zk)
    held.release()
    assert await sending == ["/one"]
    assert zk.generation == 2


async def test_a_multi_of_a_session_that_ends_is_not_applied_in_the_next_one(
    zk: ZooKeeperClient, zookeeper_proxy: ZooKeeperProxy, end_session: Callable[[ZooKeeperClient], Any]
) -> None:
    held = zookeeper_proxy.hold_request(Opcode.MULTI)
    sending = asyncio.create_task(apply_until_answered(zk, [Create("/one", DATA)], generation=zk.generation))
    await held.struck()
    await end_session(zk)
    held.release()
    with pytest.raises(SessionExpiredError):
        await sending
    assert await zk.exists("/one") is None


async def test_a_cancelled_caller_sends_nothing_more(zk: ZooKeeperClient, zookeeper_proxy: ZooKeeperProxy) -> None:
    held = zookeeper_proxy.hold_reply(Opcode.MULTI)
    sending = asyncio.create_task(apply_until_answered(zk, [Create("/s-", sequential=True)]))
    await held.struck()
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    zookeeper_proxy.reset_connections()
    await zk.wait_connected()
    assert await zk.children("/") == ["s-0000000000"]


async def test_a_change_is_computed_again_from_a_fresh_read_after_a_lost_connection(
    zk: ZooKeeperClient, zookeeper_proxy: ZooKeeperProxy
) -> None:
    await zk.multi([Create("/one", b"0")])

    async def count() -> list[Result]:
        node = await zk.read("/one")
        return await zk.multi([SetData("/one", b"%d" % (int(node.data) + 1), node.stat.version)])

    zookeeper_proxy.lose_after(Opcode.MULTI)
    await until_answered(zk, count)
    assert (await zk.read("/one")).data == b"2"


@pytest.mark.parametrize("lost", [ZooKeeperProxy.lose_before, ZooKeeperProxy.lose_after], ids=["request", "reply"])
async def test_the_end_of_a_session_whose_request_or_reply_is_lost_is_followed_by_one_new_session(
    zk: ZooKeeperClient, zookeeper_proxy: ZooKeeperProxy, lost: Callable[[ZooKeeperProxy, Opcode], object]
) -> None:
    await zk.multi([Create("/held", ephemeral=True)])
    lost(zookeeper_proxy, Opcode.CLOSE)
    await zk.end_session(1)
    assert zk.generation == 2
    assert await zk.exists("/held") is None
    await zk.end_session(1)  # it is over
    assert zk.generation == 2


async def test_a_cancelled_end_of_a_session_leaves_a_client_that_works(
    zk: ZooKeeperClient, zookeeper_proxy: ZooKeeperProxy
) -> None:
    held = zookeeper_proxy.hold_request(Opcode.CLOSE)
    ending = asyncio.create_task(zk.end_session(1))
    await held.struck()
    ending.cancel()
    await asyncio.wait([ending])
    held.release()
    async with asyncio.timeout(60):
        assert await apply_until_answered(zk, [Create("/one", DATA)]) == ["/one"]
