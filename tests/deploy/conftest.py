"""References for the tests of `deploy/`: the metrics of a worker and of the HTTP service, and promtool."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import aiozkqueue as zq
from tests.http.conftest import Service, key, service, start
from tests.integration.queue.conftest import eventually, expire, open_session, session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

__all__ = ["expire", "key", "open_session", "service", "session", "start"]

DEPLOY = Path(__file__).parents[2] / "deploy"
#: The environment variable with the path of a promtool that is not on PATH.
PROMTOOL = "AIOZKQUEUE_PROMTOOL"
WORKER = """
import asyncio

import aiozkqueue as zq

async def bill(delivery: zq.Delivery[bytes]) -> None:
    if delivery.value == b"takes long":
        await asyncio.sleep(3600)

def listeners(session: zq.QueueSession) -> zq.Listener[bytes]:
    return session.listener(session.queue("orders"), bill)
"""


class Promtool(Protocol):
    def __call__(self, *arguments: str | Path) -> str: ...


@pytest.fixture
def promtool() -> Promtool:
    """A function that runs promtool and returns its output."""
    sibling = Path(sys.executable).with_name("promtool")
    program = os.environ.get(PROMTOOL) or (str(sibling) if sibling.exists() else shutil.which("promtool"))
    if program is None:
        pytest.skip(f"no promtool on PATH, nor named by {PROMTOOL}; `make test` fetches it on Debian")

    def run(*arguments: str | Path) -> str:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """The folder of a program with a listener."""
    (tmp_path / "shop.py").write_text(WORKER)
    return tmp_path


@pytest.fixture
async def exported(
    service: Service, session: zq.QueueSession, shop: Path, zookeeper: str, queue_root: str
) -> Mapping[str, set[str]]:
    """The names of all metrics that a worker and an HTTP service export, each with its labels."""
    orders = session.queue("orders")
    texts: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=30))
        worker = await stack.enter_async_context(working(shop, zookeeper, queue_root))
        await orders.put(b"is handled")
        assert (await service.get("/queue/1/orders/size")).status_code == 200

        async def shown(*metrics: str) -> bool:
            texts["worker"] = (await client.get(f"{worker}/metrics")).text
            texts["service"] = (await service.get("/metrics")).text
            return all(metric in texts["worker"] for metric in metrics)

        await eventually(lambda: shown('aiozkqueue_messages_consumed_total{queue="orders"} 1.0'), 60)
        handled = await orders.put(b"takes long")
        age = 'aiozkqueue_handler_oldest_age_seconds{queue="orders"}'
        await eventually(lambda: shown(age), 60)
        await orders.configure(zq.QueueConfig(max_size=100, paused=True))
        await orders.put(b"waits")
        figures = ("paused", "max_size", "oldest_waiting_age_seconds")
        shows = [f'aiozkqueue_queue_{figure}{{queue="orders"}}' for figure in figures]
        await eventually(lambda: shown(age, *shows), 60)
        await orders.cancel(id=handled, running=True)
    return labels_of(list(texts.values()))


@asynccontextmanager
async def working(folder: Path, hosts: str, root: str) -> AsyncIterator[str]:
    """Run a worker with the listeners of this folder; yield the address of its health endpoint."""
    command = ["-m", "aiozkqueue", "worker", "shop:listeners", "--health-port", "0"]
    environment = os.environ | {"AIOZKQUEUE_HOSTS": hosts, "AIOZKQUEUE_ROOT": root}
    worker = await asyncio.create_subprocess_exec(
        sys.executable, *command, cwd=folder, env=environment, stderr=asyncio.subprocess.PIPE
    )
    assert worker.stderr is not None
    try:
        async with asyncio.timeout(60):
            while b"health at http://" not in (line := await worker.stderr.readline()):
                assert line, "the worker has ended"
        yield "http://" + line.decode().rpartition("http://")[2].strip()
    finally:
        worker.terminate()
        await worker.wait()


def labels_of(texts: Sequence[str]) -> dict[str, set[str]]:
    """Return the names of all metrics, each with the names of its labels."""
    found: dict[str, set[str]] = {}
    for text in texts:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    return found
