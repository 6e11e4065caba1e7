"""A public coroutine, called on a new simulated queue with a fault at one moment.

The fault hits one of its requests (lost before or after it is applied, late, unanswered, or its session ends with it),
one of its suspensions (cancelled while it waits, or when the answer has arrived), or both. A new coroutine of one of
the classes is included automatically; a parameter that `subjects` does not know fails its test.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import warnings
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiozkqueue as zq
from aiozkqueue.layout import LockRecord, decode
from aiozkqueue.queue.admin.ledger_pages import is_of_ledger
from aiozkqueue.testing.simulator import Cluster, Fault, Request, run_virtual, simulated
from tests.faults.stepping import _Watched
from tests.simulation.dialects_subjects import messages_at
from tests.simulation.subjects import ENTERED, SESSION_TIMEOUT, arguments, subject_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from aiozkqueue.testing.simulator.server import ServerConnection
    from tests.simulation.features_subjects import Ready

#: Maximum virtual seconds of each call, whatever the fault.
PATIENCE = 200.0


@dataclass
class Strike:
    """The fault of one call."""

    request: int = 0
    """The number of the affected request; 0: none."""
    fault: Fault | None = None
    """The fault of that request; None: its session ends."""
    suspension: int = 0
    """The number of the suspension at which it is cancelled; 0: none."""
    answered: bool = False
    """Whether it is cancelled when the awaited result has arrived, instead of while it waits."""


@dataclass
class Called:
    """The result of a call, and the final state."""

    requests: int = 0
    suspensions: int = 0
    error: BaseException | None = None
    state: dict[str, list[str]] | None = None
    troubles: tuple[str, ...] = ()


def call(kind: type | ModuleType, name: str, strike: Strike, *, skip: bool = False) -> Called:
    """Call a coroutine on a new queue with a fault, and check the state after everything is closed."""
    called = Called()

    async def main() -> None:
        # A single server that ends a session drops its connection; of three, the leader reports the session's end.
        async with simulated(servers=1 if strike.fault or not strike.request else 3) as cluster:
            cluster.ensemble.tick = 0.1
            cluster.ensemble.delays.lingering = lambda: 0.5
            cluster.ensemble.delays.network = lambda: 0.001
            await _prepare(cluster)
            async with AsyncExitStack() as stack:
                session = await stack.enter_async_context(
                    cluster.connect(session_timeout=SESSION_TIMEOUT, name="struck")
                )
                try:
                    async with subject_of(kind, name)(session) as ready:
                        if not skip:
                            await _struck(cluster, ready, name, strike, called)
                except (zq.QueueError, asyncio.CancelledError) as error:
                    called.error = called.error or error
                cluster.ensemble.judge = lambda *_: None
                await asyncio.sleep(3 * SESSION_TIMEOUT)
                troubles = await _still_works(session)
            if kind is zq.Leases:
                async with cluster.connect(name="after") as after:
                    await after.queue("jobs").admin.release_claims()  # no taker has removed the ended leases
            called.state, left = await _left(cluster)
            loop: Any = asyncio.get_running_loop()
            called.troubles = (*troubles, *left, *loop.failures)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_virtual(main, limit=PATIENCE)
    return called


async def _prepare(cluster: Cluster) -> None:
    async with cluster.connect(name="before") as session:
        queue = session.queue("jobs", policy=zq.ConsumeTimes(5, backoff=zq.Fixed(0)))
        await queue.put(b"dead")
        async with session.begin() as tx:
            message = await tx.take(queue)
            assert message is not None
            tx.reject(message, "bad")
        await queue.put_many([b"a", b"b"])
        await session.queue("results").put(b"r0")


async def _struck(cluster: Cluster, ready: Ready, name: str, strike: Strike, called: Called) -> None:
    if name == "__aexit__" and type(ready.subject) in ENTERED:
        await ready.subject.__aenter__()
        await asyncio.sleep(0.01)
    loop = asyncio.get_running_loop()

    def suspended(awaited: object) -> None:
        called.suspensions += 1
        if called.suspensions == strike.suspension:
            if strike.answered and isinstance(awaited, asyncio.Future):
                awaited.add_done_callback(lambda _: task.cancel())
            else:
                loop.call_soon(task.cancel)

    function = getattr(ready.subject, name)
    positional, named = arguments(ready, function)

    async def called_it() -> object:
        if inspect.isasyncgenfunction(function):
            return [one async for one in function(*positional, **named)]
        return await function(*positional, **named)

    async def watched() -> object:
        return await _Watched(called_it(), suspended)

    cluster.ensemble.judge = _judge(cluster, strike, called)
    task = loop.create_task(watched())
    done, _ = await asyncio.wait({task}, timeout=PATIENCE / 2)
    cluster.ensemble.judge = lambda *_: None
    if not done:
        task.cancel()
        raise TimeoutError(f"{name} hangs: {strike}")
    called.error = asyncio.CancelledError() if task.cancelled() else task.exception()


def _judge(cluster: Cluster, strike: Strike, called: Called) -> Callable[[ServerConnection, Request], Fault | None]:
    """Count the requests of the client under test, and apply the fault to the one chosen."""

    def judge(connection: ServerConnection, _: Request) -> Fault | None:
        if connection.client.name != "struck":
            return None
        called.requests += 1
        if called.requests != strike.request:
            return None
        if strike.fault is None:
            cluster.ensemble.expire(connection.session.id)
        return strike.fault

    return judge


async def _still_works(session: zq.QueueSession) -> list[str]:
    queue = session.queue("other")
    await queue.put(b"x")
    async with session.begin() as tx:
        message = await tx.take(queue, timeout=10)
    return [] if message is not None else ["the session does not work any more"]


def _beside(path: str, data: bytes) -> list[str]:
    """The state of a feature: a message in its own queue, or its own record."""
    if theirs := messages_at(path, data):
        return theirs
    _, _, owner, *_, name = path.split("/") if path.count("/") > 2 else ("", "", "", "")
    if owner in (".schedule", ".buses", ".notifications"):
        record = json.loads(data or b"{}")
        return [f"{path} {[record.get(field) for field in ('cron', 'paused', 'groups')]}"]
    return [f"{owner}: {decode(data)[1].decode()}"] if name.startswith("item-") and owner != "other" else []


async def _left(cluster: Cluster) -> tuple[dict[str, list[str]], list[str]]:
    """Return the place of each message, and the znodes that belong to nothing."""
    state: dict[str, list[str]] = {"jobs": [], "results": [], "dead": [], "beside": []}
    leftovers = []
    nodes = cluster.ensemble.tree.nodes
    items = [path for path in nodes if "/item-" in path]
    for path, node in nodes.items():
        parts = path.split("/")
        queue, folder, name = parts[2:3], parts[3:4], parts[-1]
        if queue not in (["jobs"], ["results"]):
            state["beside"] += _beside(path, node.data)
            continue
        if name.startswith("lock-") and is_of_ledger(LockRecord.decode(node.data)):
            state["beside"].append("held by a ledger")
        elif name.startswith("item-"):
            state["dead" if folder == ["dlq"] else queue[0]].append(decode(node.data)[1].decode())
        elif (
            name.startswith("lock-")
            or (folder in (["due"], ["consumers"]) and len(parts) > 4)
            or (name.startswith("meta-") and not any(name.removeprefix("meta-") in item for item in items))
        ):
            leftovers.append(f"left: {path}")
    return {name: sorted(values) for name, values in state.items()}, leftovers
