"""If the servers stop answering at any request of a public coroutine, it ends in time, with an error that it lists.

So it does if they answer reads, but no change.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import warnings
from functools import partial
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.errors import QueueError
from aiozkqueue.operations.budget import BUDGET
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing.simulator import Fault, Kind, run_virtual, simulated
from aiozkqueue.zookeeper import MultiError
from aiozkqueue.zookeeper.wire import error_of
from tests.simulation.bundles_subjects import BundledQueue
from tests.simulation.listed import unlisted
from tests.simulation.matrix import prepare
from tests.simulation.subjects import ENTERED, SESSION_TIMEOUT, arguments, coroutines, subject_of
from tests.simulation.test_lasting_refusals import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType
    from typing import Any

    from aiozkqueue.session.session import QueueSession
    from aiozkqueue.testing.simulator import Cluster, Request
    from aiozkqueue.testing.simulator.server import ServerConnection
    from aiozkqueue.zookeeper import Operation

    Interrupt = Callable[[Cluster, QueueSession], Callable[[], None]]

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

    def begin(self, *_: object) -> Callable[[], None]:
        """Begin with the next request; return the function that ends it."""
        self._ensemble.judge = self.judge
        return self.come_back

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


def losing(fault: Fault) -> Interrupt:
    """Let a fault hit each change of the call, and no read."""

    def begin(cluster: Cluster, _: QueueSession) -> Callable[[], None]:
        def judge(connection: ServerConnection, request: Request) -> Fault | None:
            return fault if connection.client.name == "struck" and request.kind is Kind.MULTI else None

        cluster.ensemble.judge = judge
        return partial(setattr, cluster.ensemble, "judge", lambda *_: None)

    return begin


def refusing(refusal: Callable[[Sequence[Operation]], Exception]) -> Interrupt:
    """Refuse each change of the call with this error."""

    def begin(_: Cluster, session: QueueSession) -> Callable[[], None]:
        zookeeper: Any = core_of(session).zookeeper  # its methods are replaced
        multi = zookeeper.multi

        async def refuse(operations: Sequence[Operation]) -> None:
            await asyncio.sleep(0.01)
            raise refusal(operations)

        zookeeper.multi = lambda operations, **_: asyncio.ensure_future(refuse(operations))
        return partial(setattr, zookeeper, "multi", multi)

    return begin


def by_a_server(_: Sequence[Operation]) -> Exception:
    return error_of(UNKNOWN)


def at_the_first_operation(operations: Sequence[Operation]) -> Exception:
    return MultiError(0, error_of(UNKNOWN, operations[0].path))


def at_the_last_operation(operations: Sequence[Operation]) -> Exception:
    return MultiError(len(operations) - 1, error_of(UNKNOWN, operations[-1].path))


async def interrupted(
    cluster: Cluster, kind: type | ModuleType, name: str, interrupt: Interrupt
) -> tuple[float, BaseException | None]:
    """Call a coroutine of a session with a fault; return its duration and its error."""
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

            loop = asyncio.get_running_loop()
            end = interrupt(cluster, session)
            began = loop.time()
            task = loop.create_task(called())
            await asyncio.wait({task}, timeout=10 * PATIENCE)
            took = loop.time() - began
            end()
            await asyncio.wait({task})
            error = None if task.cancelled() else task.exception()
        return took, error


def run_interrupted(
    kind: type | ModuleType, name: str, interrupt: Callable[[Cluster], Interrupt]
) -> tuple[float, BaseException | None]:
    async def main() -> tuple[float, BaseException | None]:
        async with simulated() as cluster:
            cluster.ensemble.delays.network = lambda: 0.001
            await prepare(cluster)
            return await interrupted(cluster, kind, name, interrupt(cluster))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run_virtual(main)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("kind", "name"), CALLS, ids=[f"{kind.__name__}.{name}" for kind, name in CALLS])
def test_a_call_ends_in_time_with_a_listed_error_when_the_servers_stop_answering_at_any_request(
    kind: type | ModuleType, name: str
) -> None:
    wrong: list[str] = []
    number = requests = 1
    while number <= requests:
        away = list[Away]()

        def leave(cluster: Cluster, number: int = number, away: list[Away] = away) -> Interrupt:
            away.append(Away(cluster, number))
            return away[0].begin

        took, error = run_interrupted(kind, name, leave)
        requests = away[0].requests
        if took > PATIENCE + LATE:
            wrong.append(f"{took:.1f} s, away from request {number} on")
        if isinstance(error, QueueError) and (error_unlisted := unlisted(kind, name, error)) is not None:
            wrong.append(f"{error_unlisted}, away from request {number} on")
        number += 1
    assert wrong == []


#: Calls that take longer: they return figures, of which some are incomplete after their own budget.
BUDGETED = {"Queue.stats", "Queue.claimed"}


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "interrupt",
    [
        losing(Fault.SILENCE),
        losing(Fault.LOST_BEFORE),
        losing(Fault.DROPPED),
        refusing(by_a_server),
        refusing(at_the_first_operation),
        refusing(at_the_last_operation),
    ],
    ids=["no answer", "lost connection", "dropped", "refused", "refused first", "refused last"],
)
def test_each_call_ends_in_time_with_a_listed_error_if_the_servers_answer_reads_but_apply_no_change(
    interrupt: Interrupt,
) -> None:
    wrong: list[str] = []
    for kind, name in CALLS:
        took, error = run_interrupted(kind, name, lambda _: interrupt)
        patience = BUDGET if f"{kind.__name__}.{name}" in BUDGETED else PATIENCE + SESSION_TIMEOUT
        if took > patience + LATE:
            wrong.append(f"{kind.__name__}.{name} takes {took:.1f} s")
        if (error_unlisted := unlisted(kind, name, error)) is not None:
            wrong.append(error_unlisted)
    assert wrong == []
