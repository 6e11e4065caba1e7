"""Calls while requests and replies are lost: one reply, stored by the commit of the handler."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.errors import GivenUpError
from tests.faults.account import PUT, SETTLE

if TYPE_CHECKING:
    from aiozkqueue.testing import ZooKeeperProxy
    from aiozkqueue.testing.frames import Match
    from tests.faults.account import Account


def lose(proxy: ZooKeeperProxy, fault: str, lost: str, change: Match) -> None:
    """Lose every third request for a while, or the first one that is this change."""
    if lost == "every third request":
        numbers = iter(range(1_000_000))
        getattr(proxy, fault)(lambda request: request.opcode > 0 and next(numbers) % 3 == 2, times=10)
    else:
        getattr(proxy, fault)(change)


@pytest.mark.parametrize("bundle", [None, 64], ids=["single items", "bundles"])
@pytest.mark.parametrize("fault", ["lose_before", "lose_after"])
@pytest.mark.parametrize("lost", ["the put", "the commit", "every third request"])
async def test_a_call_gets_one_reply_whatever_is_lost(
    proxy: ZooKeeperProxy, quick: str, root: str, account: Account, fault: str, lost: str, bundle: int | None
) -> None:
    handled: list[bytes] = []

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        handled.append(delivery.value)
        delivery.reply(delivery.value.upper())

    async with (
        asyncio.timeout(60),
        zq.connect(proxy.hosts, root=root, session_timeout=20) as caller,
        zq.connect(proxy.hosts if lost == "the commit" else quick, root=root, session_timeout=20) as worker,
        worker.listener(worker.queue("jobs"), handler, concurrency=8),
    ):
        jobs = caller.queue("jobs")
        await jobs.configure(zq.QueueConfig(bundle=bundle))
        assert await jobs.call(b"first", timeout=30) == b"FIRST"
        lose(proxy, fault, lost, PUT if lost == "the put" else SETTLE)
        bodies = [b"word %d" % number for number in range(40)]
        answers = await asyncio.gather(*(jobs.call(body, timeout=45) for body in bodies))
    assert answers == [body.upper() for body in bodies]
    assert await account.bodies("jobs") == []
    assert await account.locks("jobs") == []


@pytest.mark.parametrize("bundle", [None, 64], ids=["single items", "bundles"])
@pytest.mark.parametrize("fault", ["lose_before", "lose_after"])
@pytest.mark.parametrize("lost", ["the commit", "every third request"])
async def test_a_call_whose_message_is_given_up_ends_whatever_is_lost(
    proxy: ZooKeeperProxy, quick: str, root: str, account: Account, fault: str, lost: str, bundle: int | None
) -> None:
    async def handler(delivery: zq.Delivery[bytes]) -> None:
        delivery.reply(b"never")
        raise zq.Reject(delivery.value.decode())

    async with (
        asyncio.timeout(60),
        zq.connect(proxy.hosts, root=root, session_timeout=20) as caller,
        zq.connect(proxy.hosts if lost == "the commit" else quick, root=root, session_timeout=20) as worker,
        worker.listener(worker.queue("jobs"), handler, concurrency=8),
    ):
        jobs = caller.queue("jobs")
        await jobs.configure(zq.QueueConfig(bundle=bundle))
        with pytest.raises(GivenUpError):
            await jobs.call(b"first", timeout=30)
        lose(proxy, fault, lost, SETTLE)
        bodies = [b"word %d" % number for number in range(40)]
        answers = await asyncio.gather(*(jobs.call(body, timeout=45) for body in bodies), return_exceptions=True)
        letters = await jobs.dead_letters.peek(100)
    reasons = [answer.reason if isinstance(answer, GivenUpError) else repr(answer) for answer in answers]
    assert reasons == [body.decode() for body in bodies]
    assert sorted(letter.body for letter in letters) == sorted([b"first", *bodies])
    assert await account.bodies("jobs") == []
    assert await account.locks("jobs") == []
