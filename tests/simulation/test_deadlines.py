"""If the servers stop answering at any request of a public coroutine, it ends in time, with an error that it lists."""

from __future__ import annotations

import asyncio
import inspect
import logging
import warnings
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.errors import QueueError
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing.simulator import Fault, run_virtual, simulated
from tests.simulation.bundles_subjects import BundledQueue
from tests.simulation.listed import unlisted
from tests.simulation.matrix import prepare
from tests.simulation.subjects import ENTERED, SESSION_TIMEOUT, arguments, coroutines, subject_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from aiozkqueue.testing.simulator import Cluster, Request
    from aiozkqueue.testing.simulator.server import ServerConnection

#: The session's `operation_timeout`, and the seconds by which a call may exceed it.
PATIENCE, LATE = 8.0, 0.2
#: Calls without a deadline: services, loops over messages, and commits, which wait for their outcome.
ENDLESS = {
    "App.run",
    "aiozkqueue.run",
    "Listener.run",
    "Scheduler.run",
    "Handlers.handle_batches",
    "Handlers.handle_at_a_rate",
    "Consumer.__anext__",
    "Transaction.commit",
    "TransactionBlock.__aexit__",
    "Delivery.commit",
    "Delivery.reject",
    "Delivery.__aexit__",
}
CALLS = [
    (kind, name) for kind, name in coroutines() if kind is not BundledQueue and f"{kind.__name__}.{name}" not in ENDLESS
]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Away:
    """Servers that stop answering at one of the requests of a call."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self._ensemble = cluster.ensemble
        self._number = number
        self.requests = 0

    def judge(self, connection: ServerConnection, _: Request) -> Fault | None:
        if connection.client.name != "struck":
            return None
        self.requests += 1
        if self.requests < self._number:
            return None
        for server in self._ensemble.servers:
            asyncio.get_running_loop().call_soon(self._ensemble.stop, server)
        return Fault.SILENCE

    def come_back(self) -> None:
        self._ensemble.judge = lambda *_: None
        for server in self._ensemble.servers:
            server.up = True


async def interrupted(
    cluster: Cluster, kind: type | ModuleType, name: str, number: int
) -> tuple[float, int, BaseException | None]:
    """Call a coroutine whose servers stop answering at a request; return its duration, its requests and its error."""
    async with cluster.connect(session_timeout=SESSION_TIMEOUT, name="struck") as session:
        core_of(session).limit_calls(PATIENCE)
        async with subject_of(kind, name)(session) as ready:
            if name == "__aexit__" and isinstance(ready.subject, ENTERED):
                await ready.subject.__aenter__()
                await asyncio.sleep(0.01)
            function = getattr(ready.subject, name)
            positional, named = arguments(ready, function)

            async def called() -> object:
                if inspect.isasyncgenfunction(function):
                    return [element async for element in function(*positional, **named)]
                return await function(*positional, **named)

            away, loop = Away(cluster, number), asyncio.get_running_loop()
            cluster.ensemble.judge = away.judge
            began = loop.time()
            task = loop.create_task(called())
            await asyncio.wait({task}, timeout=10 * PATIENCE)
            took = loop.time() - began
            away.come_back()
            await asyncio.wait({task})
            error = None if task.cancelled() else task.exception()
        return took, away.requests, error if isinstance(error, QueueError) else None


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("kind", "name"), CALLS, ids=[f"{kind.__name__}.{name}" for kind, name in CALLS])
def test_a_call_ends_in_time_with_a_listed_error_when_the_servers_stop_answering_at_any_request(
    kind: type | ModuleType, name: str
) -> None:
    wrong: list[str] = []
    number = requests = 1
    while number <= requests:

        async def main(number: int = number) -> tuple[float, int, BaseException | None]:
            async with simulated() as cluster:
                cluster.ensemble.delays.network = lambda: 0.001
                await prepare(cluster)
                return await interrupted(cluster, kind, name, number)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            took, requests, error = run_virtual(main)
        if took > PATIENCE + LATE:
            wrong.append(f"{took:.1f} s, away from request {number} on")
        if (error_unlisted := unlisted(kind, name, error)) is not None:
            wrong.append(f"{error_unlisted}, away from request {number} on")
        number += 1
    assert wrong == []
