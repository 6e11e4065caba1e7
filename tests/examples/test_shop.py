"""The shop of the examples loses no order and handles none twice while its parts are killed and restarted."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

import aiozkqueue as zq
from aiozkqueue.testing import EmbeddedZooKeeper, assert_empty
from aiozkqueue.testing.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(400)

EXAMPLES = Path(__file__).parents[2] / "examples"
#: Seconds within which a process must act, even on a busy machine.
PATIENCE = 120.0
ORDERS = 150


def test_the_tests_of_the_shop_pass() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLES / "shop")],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr


class Shop:
    """The processes of a shop on its own server."""

    def __init__(self, server: EmbeddedZooKeeper, stack: ExitStack) -> None:
        self.server = server
        self._stack = stack
        self._environment = os.environ | {
            "AIOZKQUEUE_HOSTS": server.hosts,
            "PYTHONPATH": f"{EXAMPLES}:{EXAMPLES.parent}",
        }
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self._start("uvicorn", "shop.web:web", "--port", str(port), "--log-level", "warning")

    def worker(self) -> subprocess.Popen[bytes]:
        return self._start("aiozkqueue", "worker", "shop.queues:app", "--session-timeout", "6")

    def _start(self, *module: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-m", *module], env=self._environment, cwd=EXAMPLES)
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        return process


@pytest.fixture
def shop() -> Iterator[Shop]:
    with ExitStack() as stack:
        yield Shop(stack.enter_context(EmbeddedZooKeeper()), stack)


async def _order(client: httpx.AsyncClient, number: int) -> int:
    """Place an order, and repeat it after an error. A conflict means that the first request was applied."""
    order = {"id": number, "article": "rare teapot" if number % 50 == 7 else "cup", "cents": 100 + number}
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                answer = await client.post("/orders", json=order)
            except httpx.TransportError:  # the process has not started yet
                await asyncio.sleep(0.2)
                continue
            if answer.status_code in {202, 409}:
                return answer.status_code
            assert answer.status_code == 503, answer.text  # nothing was applied
            await asyncio.sleep(0.2)


async def _orders_of(session: zq.QueueSession, queue: str) -> list[int]:
    messages = await session.queue(queue, dict[str, int | str]).peek(2 * ORDERS)
    return [int(message.value["order"]) for message in messages]


@pytest.mark.slow
async def test_no_order_is_lost_or_handled_twice_while_a_worker_is_killed_and_zookeeper_restarts(shop: Shop) -> None:
    victim, survivor = await asyncio.to_thread(shop.worker), await asyncio.to_thread(shop.worker)
    answers: Counter[int] = Counter()
    restarting: asyncio.Task[None] | None = None
    async with httpx.AsyncClient(base_url=shop.url, timeout=PATIENCE) as client:
        for number in range(ORDERS):
            if number == ORDERS // 3:
                victim.kill()
            if number == ORDERS // 2:
                restarting = asyncio.create_task(asyncio.to_thread(shop.server.node.restart, PATIENCE))
            answers[await _order(client, number)] += 1
        assert restarting is not None
        await restarting
        assert answers[202] + answers[409] == ORDERS
        async with zq.connect(shop.server.hosts) as session:
            await assert_empty(session.queue("orders"), timeout=PATIENCE)
            billed, shipped = [await _orders_of(session, name) for name in ("bills", "parcels")]
            assert sorted(billed) == sorted(shipped) == list(range(ORDERS))
        assert "aiozkqueue_" in (await client.get("/metrics")).text
    survivor.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(survivor.wait, PATIENCE) == 0
