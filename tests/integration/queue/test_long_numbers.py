"""Znodes of another program whose names contain numbers that Python refuses to convert: over 4,300 digits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq

if TYPE_CHECKING:
    from tests.observer import Observer

LONG = "1" * 5_000
KEY = "k" + "a" * 32


@pytest.mark.parametrize(
    "place",
    [
        "later/{}",
        "later/{}/item-t5-iabc-0000000001",
        "lanes/s0g{}",
        "lanes/s{}g0",
        "items/item-e{}-iabc-0000000001",
        "items/item-t{}-iabc-0000000001",
        "items/item-{}-o{}-iabc-0000000001",
        "items/item-iabc-{}",
        "items/bundle-m{}-sabc-labc-iabc-0000000001",
        "dlq/item-e{}-iabc-0000000001",
        "locks/lock-{}",
        "due/{}-abc",
        "history/{}/abc",
        "meta/meta-{}",
        "keys/{}",
        "consumers/{}",
        "bundled/{}",
        "tags/{}",
    ],
)
async def test_a_long_number_in_a_name_stops_neither_a_queue_nor_its_session(
    place: str, session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    config = zq.QueueConfig(collapse=True, shards=2) if "-o" in place else zq.QueueConfig(history=zq.History())
    jobs = session.queue("jobs", policy=zq.ConsumeTimes(2, backoff=zq.Fixed(0)))
    await jobs.configure(config)
    await jobs.put(b"opens the queue", key="a", delay=0.5)
    name = place.replace("-{}-o", f"-{KEY}-o").replace("{}", LONG)
    await server_view.create(f"{queue_root}/jobs/{name}", b"")
    await jobs.put(b"sound", key="b")
    taken: set[bytes] = set()
    async with asyncio.timeout(30), jobs.consume() as deliveries:
        async for delivery in deliveries:
            taken.add(delivery.body)
            if taken >= {b"opens the queue", b"sound"}:
                break
    await jobs.put(b"waits", key="c")
    assert (await jobs.stats()).size >= 1
    assert b"waits" in [message.body for message in await jobs.peek(10)]
    await session.admin.clean()
    await session.admin.diagnose("jobs")
    assert await jobs.cancel(key="c") is zq.Alteration.DONE
    assert await session.queue("others").put(b"1")
