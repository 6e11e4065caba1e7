"""Each public coroutine lists the errors that the stored configuration of a queue can cause under ``Raises:``."""

from __future__ import annotations

import asyncio
import inspect
import logging
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.errors import ConfigConflictError
from aiozkqueue.testing.simulator import Cluster, run_virtual, simulated
from aiozkqueue.zookeeper import SetData
from tests.simulation.listed import said_to_raise, unlisted
from tests.simulation.matrix import PATIENCE, prepare
from tests.simulation.subjects import ENTERED, SESSION_TIMEOUT, arguments, coroutines, subject_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from types import ModuleType

    from tests.simulation.features_subjects import Ready

#: A policy that no queue of the tests stores.
ANOTHER = zq.ConsumeTimes(7)

#: The end of the block of a service is missing: a service that fails cancels its block, and `run` has its errors.
CALLS = [(kind, name) for kind, name in coroutines() if not (kind in ENTERED and name == "__aexit__")]

each_coroutine = pytest.mark.parametrize(
    ("kind", "name"), CALLS, ids=[f"{kind.__name__}.{name}" for kind, name in CALLS]
)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


@each_coroutine
def test_the_docstring_lists_the_error_of_a_configuration_that_does_not_decode(
    kind: type | ModuleType, name: str
) -> None:
    assert unlisted(kind, name, run(kind, name, damage)) is None


@each_coroutine
def test_the_docstring_lists_the_error_of_a_policy_that_differs(
    kind: type | ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The subject is the first user of the queue, and names a policy that differs from the stored one.
    queue_of = zq.QueueSession.queue

    def with_another(session: zq.QueueSession, queue: str, *given: Any, **options: Any) -> Any:
        return queue_of(session, queue, *given, **{"policy": ANOTHER} | options)

    async def name_another(_: Cluster) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(zq.QueueSession, "queue", with_another)
    assert unlisted(kind, name, run(kind, name, name_another)) is None


@pytest.mark.parametrize("call", ["take", "acknowledge", "renew"])
def test_a_lease_lists_the_error_of_a_policy_that_differs(call: str) -> None:
    async def main() -> None:
        async with simulated() as cluster:
            await prepare(cluster)
            async with cluster.connect() as holder, cluster.connect() as session:
                tokens = [lease.token for lease in await holder.queue("jobs").leases.take(1, lifetime=60)]
                leases = session.queue("jobs", policy=ANOTHER).leases
                calls: dict[str, Callable[[], Awaitable[object]]] = {
                    "take": lambda: leases.take(1),
                    "acknowledge": lambda: leases.acknowledge(tokens),
                    "renew": lambda: leases.renew(tokens),
                }
                with pytest.raises(ConfigConflictError):
                    await calls[call]()

    run_virtual(main)
    assert "ConfigConflictError" in (said_to_raise(zq.Leases, call) or set())


@pytest.mark.parametrize("call", ["take", "take_many", "cancel", "update", "commit"])
def test_a_transaction_lists_the_error_of_a_policy_that_differs(call: str) -> None:
    async def main() -> None:
        async with simulated() as cluster:
            await prepare(cluster)
            async with cluster.connect() as session, session.transaction(autocommit=False) as tx:
                jobs = session.queue("jobs", policy=ANOTHER)
                tx.put(jobs, b"new")
                calls: dict[str, Callable[[], Awaitable[object]]] = {
                    "take": lambda: tx.take(jobs),
                    "take_many": lambda: tx.take_many(jobs, 2),
                    "cancel": lambda: tx.cancel(jobs, id="nobody"),
                    "update": lambda: tx.update(jobs, b"new", id="nobody"),
                    "commit": tx.commit,
                }
                with pytest.raises(ConfigConflictError):
                    await calls[call]()

    run_virtual(main)
    assert "ConfigConflictError" in (said_to_raise(zq.Transaction, call) or set())


def run(kind: type | ModuleType, name: str, change: Callable[[Cluster], Awaitable[None]]) -> BaseException | None:
    """Call a coroutine after a change on the server; return its error. A subject that cannot be made has none."""
    errors: list[BaseException] = []

    async def main() -> None:
        async with simulated() as cluster:
            await prepare(cluster)
            async with cluster.connect(session_timeout=SESSION_TIMEOUT) as session:
                with suppress(zq.QueueError):
                    async with subject_of(kind, name)(session) as ready:
                        await change(cluster)
                        errors.extend(await error_of(ready, name))

    run_virtual(main, limit=PATIENCE)
    return errors[0] if errors else None


async def error_of(ready: Ready, name: str) -> list[BaseException]:
    """Call the coroutine, and return its error, if any."""
    function = getattr(ready.subject, name)
    positional, named = arguments(ready, function)
    try:
        if inspect.isasyncgenfunction(function):
            async for _ in function(*positional, **named):
                pass
        else:
            async with asyncio.timeout(PATIENCE / 2):
                await function(*positional, **named)
    except zq.QueueError as error:
        return [error]
    except (TimeoutError, StopAsyncIteration):
        pass  # a call that waits, and the end of a loop
    return []


async def damage(cluster: Cluster) -> None:
    """Replace the configuration of each queue by text that is not JSON."""
    client = await cluster.client(name="operator")
    queues = [path for path in list(cluster.ensemble.tree.nodes) if path.startswith("/zms/") and path.count("/") == 2]
    for path in queues:
        if not path.startswith("/zms/."):
            await client.multi([SetData(path, b"{", -1)])
    await client.close()
