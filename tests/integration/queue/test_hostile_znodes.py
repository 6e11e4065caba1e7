"""Znodes with random names and data anywhere in a queue's tree: they stop neither the queue nor its session."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest
from kazoo.exceptions import KazooException

import aiozkqueue as zq
from aiozkqueue.errors import ConfigConflictError
from tests.integration.queue.conftest import eventually
from tests.security.fuzzing import LONG

if TYPE_CHECKING:
    from tests.observer import Observer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600 if LONG else 600)]

ROUNDS = LONG or 5
MESSAGES = 8
#: Znodes that are created in a round.
HOSTILE = 15
#: The pieces of the names that a queue's own znodes have, and pieces that look like them.
PIECES = [
    *("item-", "bundle-", "lock-", "meta-", "seal", "-i", "-k", "-g", "-f", "-e", "-t", "-p", "-u1", "-b", "-n", "-s"),
    *("-o", "-r", "m", "s", "l", "0000000001", "9999999999", "-000000001", "-0000000001", "1", "99", "1" * 18),
    *("9" * 5_000, "²", "٣", "é", "%", ".", " ", "a", "-", "--", "~", "p128s0g0", "s0g0", "s1g1", "2026-11-30T03"),
    *("k" + "a" * 32, "g" + "b" * 32, "f" + "c" * 16, "1700000000000-abc", "-p200"),
]
FOLDERS = [
    *(
        "items",
        "items",
        "items",
        "later",
        "later",
        "",
        "locks",
        "meta",
        "dlq",
        "due",
        "later/494000",
        "lanes",
        "lanes/s0g0",
        "history",
        "keys",
    ),
    *("history/2026-11-30T03", "tags", "consumers", "bundled", "staged", "waiting", "groups", "ledgers", "nodes"),
]
DATA = [b"", b"x", b"{}", b'{"attempts":9}', b"\0\1\2", b'{"end":1}', b"9" * 5_000, b"\xff" * 50, b"[]", b"null"]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"bundle": 1},
    {"ordered": True},
    {"collapse": True, "shards": 2},
    {"history": zq.History()},
    {"shards": 3},
    {"max_size": 50},
    {"ttl": 60},
    {"affinity": "producer"},
]


async def plant(view: Observer, base: str, chance: random.Random) -> None:
    """Create znodes with random names; those that ZooKeeper refuses are left out."""
    for _ in range(HOSTILE):
        name = "".join(chance.choice(PIECES) for _ in range(chance.randint(1, 5)))
        path = "/".join(part for part in (base, chance.choice(FOLDERS), name) if part)
        try:
            await view.create(path, chance.choice(DATA))
        except (KazooException, ValueError):
            continue


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: " ".join(settings) or "default")
@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_znodes_of_any_name_stop_neither_a_queue_nor_its_session(
    seed: int, settings: dict[str, Any], session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    chance = random.Random(f"{seed} {settings}")
    jobs = session.queue("jobs", policy=zq.ConsumeTimes(2, backoff=zq.Fixed(0)))
    await jobs.configure(zq.QueueConfig(**settings))
    handled: set[bytes] = set()

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        if chance.random() < 0.3:
            raise RuntimeError("refused by chance")
        handled.add(delivery.body)

    async def put(number: int) -> str:
        options: dict[str, Any] = {"key": f"k{number}"}
        if chance.random() < 0.6 and not settings.get("ordered"):
            options |= chance.choice([{"delay": 0.2}, {"group": "g"}])
        try:
            return await jobs.put(b"%d" % number, **options)
        except ConfigConflictError:
            return await jobs.put(b"%d" % number)

    async def all_ended() -> bool:
        dead = {letter.body for letter in await jobs.dead_letters.peek(100)}
        return handled | dead >= {b"%d" % number for number in range(MESSAGES)}

    first = await put(0)
    await plant(server_view, f"{queue_root}/jobs", chance)
    assert (await jobs.state(first)).id == first
    async with session.listener(jobs, handler, concurrency=3):
        planting = asyncio.create_task(plant(server_view, f"{queue_root}/jobs", chance))
        for number in range(1, MESSAGES):
            await put(number)
        await planting
        await eventually(all_ended)
    for operation in (
        jobs.dead_letters.redrive,
        jobs.stats,
        jobs.peek,
        session.admin.clean,
        session.admin.diagnose,
        lambda: jobs.cancel(key="k1"),
        jobs.size,
        lambda: session.admin.moves.start(jobs, "moved"),
        jobs.purge,
    ):
        await operation()
    assert await session.queue("others").put(b"1")  # the session goes on
