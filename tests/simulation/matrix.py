"""A public coroutine, called on a new simulated queue with a fault at one moment.

The fault hits one of its requests (lost before or after it is applied, late, unanswered, of an outcome that stays
unknown, or its session ends with it), one of its suspensions (cancelled while it waits, or when the answer has
arrived), or both. Or another task closes the session at one of them. A new coroutine of one of the classes is included
automatically; a parameter that `subjects` does not know fails its test.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import warnings
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiozkqueue as zq
from aiozkqueue.layout import DELETED, LockRecord, decode, is_bundle
from aiozkqueue.operations.ledger_pages import is_of_ledger
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing.simulator import Cluster, Fault, Kind, Request, run_virtual, simulated
from aiozkqueue.zookeeper import Delete, SetData
from tests.faults.stepping import _Watched
from tests.simulation.bundles_subjects import FIRST, HELD, NEXT, SIZE, TAKEN, TOGETHER, BundledQueue
from tests.simulation.dialects_subjects import messages_at
from tests.simulation.subjects import ABSORBING, ENTERED, GRADUAL, SESSION_TIMEOUT, arguments, subject_of
from tests.simulation.workload import left_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from aiozkqueue.testing.simulator.server import ServerConnection
    from tests.simulation.features_subjects import Ready

#: The faults of a request; None: its session ends.
FAULTS = [*Fault, None]
#: Maximum virtual seconds of each call, whatever the fault.
PATIENCE = 200.0

#: The sorted payloads of the messages in each place.
State = dict[str, list[str]]


@dataclass
class CallFault:
    """The fault of one call."""

    request: int = 0
    """The number of the affected request; 0: none."""
    fault: Fault | None = None
    """The fault of that request; None: its session ends."""
    suspension: int = 0
    """The number of the suspension at which it is cancelled; 0: none."""
    answered: bool = False
    """Whether it is cancelled when the awaited result has arrived, instead of while it waits."""
    unknown: bool = False
    """Whether the outcome of that request stays unknown: its commit slot is removed before the client can read it."""
    closed: bool = False
    """Whether another task closes the session at that request or suspension, which is the only fault then."""


@dataclass
class Called:
    """The result of a call, with the final state."""

    sent: list[Request] = field(default_factory=list)
    suspensions: int = 0
    error: BaseException | None = None
    state: State | None = None
    troubles: tuple[str, ...] = ()
    unknown: bool = False
    """Whether the outcome of one of its requests stayed unknown."""

    @property
    def requests(self) -> int:
        return len(self.sent)


def call(kind: type | ModuleType, name: str, injected: CallFault, *, skip: bool = False) -> Called:
    """Call a coroutine on a new queue with a fault, and check the state after everything is closed."""
    called = Called(unknown=injected.unknown)

    async def main() -> None:
        # A single server that ends a session drops its connection. With three servers, the leader reports the end.
        async with simulated(servers=1 if injected.fault or not injected.request else 3) as cluster:
            cluster.ensemble.tick = 0.1
            cluster.ensemble.delays.lingering = lambda: 0.5
            cluster.ensemble.delays.network = lambda: 0.001
            await prepare(cluster)
            async with AsyncExitStack() as stack:
                session = await stack.enter_async_context(
                    cluster.connect(session_timeout=SESSION_TIMEOUT, name="struck")
                )
                try:
                    async with subject_of(kind, name)(session) as ready:
                        if not skip:
                            await _call_with_fault(cluster, ready, name, injected, called)
                except (zq.QueueError, asyncio.CancelledError) as error:
                    called.error = called.error or error
                cluster.ensemble.judge = lambda *_: None
                await asyncio.sleep(3 * SESSION_TIMEOUT)
                troubles = [] if injected.closed else await _still_works(session)
            if kind is zq.Leases:
                async with cluster.connect(name="after") as after:
                    await after.queue("jobs").admin.release_claims()  # because no taker has removed the ended leases
            called.state, left = await _left(cluster)
            if kind is BundledQueue:
                # A bundle is dissolved while later messages are claimed, if a session ended that held messages of it.
                ends = injected.closed and name in HELD
                in_order = not ends and (injected.fault is not None or not injected.request)
                fresh = FIRST[TAKEN.get(name, len(FIRST)) :]
                if injected.unknown:  # if it is a take, it continues with the first message of the next bundle
                    fresh = [body for body in fresh if body not in FIRST[::SIZE]]
                troubles += await _drained(cluster, called.state["jobs"], fresh, in_order=in_order)
                _, left = await _left(cluster)
            loop: Any = asyncio.get_running_loop()
            called.troubles = (*troubles, *left, *loop.failures)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_virtual(main, limit=PATIENCE)
    return called


def verdict(
    name: str, faulty: Called, undisturbed: Called, never: Called, documented: set[str] | None = None
) -> list[str]:
    """Return what is wrong with a call; ``documented`` are the errors in its docstring."""
    wrong = list(faulty.troubles)
    error, state = faulty.error, faulty.state
    assert state is not None
    assert undisturbed.state is not None
    assert never.state is not None
    if error is None:
        expected = _expected_states(name, undisturbed.state, never.state, unknown=faulty.unknown)
        if state not in expected and name not in GRADUAL:
            wrong.append(f"it returned, and left {state}, undisturbed it leaves {undisturbed.state}")
    elif isinstance(error, zq.NotCommittedError):
        if state != never.state and name not in GRADUAL:
            wrong.append(f"{error!r}, and it left {state}, never called it leaves {never.state}")
    elif not isinstance(error, asyncio.CancelledError | zq.QueueError | StopAsyncIteration):
        wrong.append(f"unexpected error: {error!r}")
    elif state not in (undisturbed.state, never.state) and name not in GRADUAL:
        wrong.append(f"{error!r}, and it left {state}, neither {undisturbed.state} nor {never.state}")
    for place in state:
        allowed = Counter(undisturbed.state[place]) | Counter(never.state[place])
        if name not in GRADUAL and Counter(state[place]) - allowed:
            wrong.append(f"{place} holds {state[place]}")
    if (
        isinstance(error, zq.QueueError)
        and documented is not None
        and not documented & {kind.__name__ for kind in type(error).mro()}
    ):
        wrong.append(f"its docstring says nothing of {error!r}")
    everywhere = Counter(state["jobs"] + state["dead"])
    wrong += [f"{token} is there {number} times" for token, number in everywhere.items() if number > 1]
    return wrong


def _expected_states(name: str, undisturbed: State, never: State, *, unknown: bool) -> list[State]:
    """Return the states that a call without an error may leave."""
    if name in ABSORBING:
        return [undisturbed, never]
    if not unknown or name not in NEXT:
        return [undisturbed]
    kept = [body for body in undisturbed["jobs"] if body not in NEXT[name]]
    return [undisturbed | {"jobs": sorted([*kept, *(NEXT[name] - {finished})])} for finished in NEXT[name]]


async def prepare(cluster: Cluster) -> None:
    """Make the queues that calls find: one with waiting messages and a dead letter, and one for results."""
    async with cluster.connect(name="before") as session:
        queue = session.queue("jobs", policy=zq.ConsumeTimes(5, backoff=zq.Fixed(0)))
        await queue.put(b"dead")
        async with session.transaction() as tx:
            message = await tx.take(queue)
            assert message is not None
            tx.reject(message, "bad")
        await queue.put_many([b"a", b"b"])
        await session.queue("results").put(b"r0")


async def _call_with_fault(cluster: Cluster, ready: Ready, name: str, injected: CallFault, called: Called) -> None:
    if name == "__aexit__" and isinstance(ready.subject, ENTERED):
        await ready.subject.__aenter__()
        await asyncio.sleep(0.01)
    loop, closer = asyncio.get_running_loop(), _Closer(ready.session)

    def strike(awaited: object) -> None:
        if injected.closed:
            loop.call_soon(closer.close)
        elif injected.answered and isinstance(awaited, asyncio.Future):
            awaited.add_done_callback(lambda _: task.cancel())
        else:
            loop.call_soon(task.cancel)

    def suspended(awaited: object) -> None:
        called.suspensions += 1
        if called.suspensions == injected.suspension:
            strike(awaited)

    async def watched() -> object:
        return await _Watched(_run(ready, name), suspended)

    cluster.ensemble.judge = _judge(cluster, injected, called, closer)
    task = loop.create_task(watched())
    done, _ = await asyncio.wait({task}, timeout=PATIENCE / 2)
    cluster.ensemble.judge = lambda *_: None
    await closer.wait()
    if not done:
        task.cancel()
        raise TimeoutError(f"{name} hangs: {injected}")
    called.error = asyncio.CancelledError() if task.cancelled() else task.exception()


async def _run(ready: Ready, name: str) -> object:
    function = getattr(ready.subject, name)
    positional, named = arguments(ready, function)
    if inspect.isasyncgenfunction(function):
        return [element async for element in function(*positional, **named)]
    return await function(*positional, **named)


def _judge(
    cluster: Cluster, injected: CallFault, called: Called, closer: _Closer
) -> Callable[[ServerConnection, Request], Fault | None]:
    """Return a function that records the requests of the client under test, and applies the fault to one of them."""
    removing: asyncio.Task[None] | None = None

    def judge(connection: ServerConnection, request: Request) -> Fault | None:
        nonlocal removing
        if connection.client.name != "struck":
            return None
        called.sent.append(request)
        if removing is not None:
            return None if removing.done() else Fault.LOST_BEFORE
        if called.requests != injected.request:
            return None
        if injected.closed:
            closer.close()
            return None
        if injected.unknown:
            removing = asyncio.ensure_future(_remove(cluster, slots_of(request)))
        if injected.fault is None:
            cluster.ensemble.expire(connection.session.id)
        return injected.fault

    return judge


class _Closer:
    """Closes a session in another task."""

    def __init__(self, session: zq.QueueSession) -> None:
        self._core = core_of(session)
        self._task: asyncio.Task[None] | None = None

    def close(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._core.close())

    async def wait(self) -> None:
        """Wait for the end of the close, if it has begun. Raises: its error; TimeoutError."""
        if self._task is not None:
            await asyncio.wait_for(self._task, 2 * SESSION_TIMEOUT)


def slots_of(request: Request) -> list[str]:
    """Return the commit slots under which a request is sent."""
    operations = request.argument if request.kind is Kind.MULTI else ()
    return [each.path for each in operations if isinstance(each, SetData) and "/slot-" in each.path]


async def _remove(cluster: Cluster, slots: list[str]) -> None:
    zookeeper = await cluster.client(name="remover")
    await asyncio.sleep(0.01)
    await zookeeper.multi([Delete(slot) for slot in slots])
    await zookeeper.close()


async def _still_works(session: zq.QueueSession) -> list[str]:
    queue = session.queue("other")
    await queue.put(b"x")
    async with session.transaction() as tx:
        message = await tx.take(queue, timeout=10)
    return [] if message is not None else ["the session does not work any more"]


async def _drained(cluster: Cluster, expected: list[str], fresh: Sequence[bytes], *, in_order: bool) -> list[str]:
    """Take all messages; return the deviations in contents, times of put, and order.

    ``fresh`` are the messages that no taker can have received before.
    """
    taken: list[str] = []
    wrong: list[str] = []
    moments: set[object] = set()
    async with cluster.connect(name="drain") as session:
        while True:
            try:
                async with session.transaction() as tx:
                    messages = await tx.take_many(session.queue("jobs"), 10, timeout=1)
            except zq.QueueError as error:
                return [f"a consumer got {error!r}"]
            bodies = [message.value.decode() for message in messages]
            taken += bodies
            moments |= {message.enqueued_at for message in messages if message.value in FIRST}
            wrong += [
                f"{message.value!r} had attempts"
                for message in messages
                if message.attempt > 1 and message.value in fresh
            ]
            if not messages:
                break
    wrong += [] if sorted(taken) == expected else [f"a consumer got {sorted(taken)} of {expected}"]
    for together in TOGETHER if in_order else ():
        kept = [body for body in taken if body in together]
        wrong += [] if kept == sorted(kept) else [f"a consumer got {taken} in this order"]
    return wrong if len(moments) <= 1 else [*wrong, f"messages of one put were put at {moments}"]


def _feature_state(path: str, data: bytes) -> list[str]:
    """Return the state of a feature: a message in its own queue, or its own record."""
    if messages := messages_at(path, data):
        return messages
    _, _, owner, *_, name = path.split("/") if path.count("/") > 2 else ("", "", "", "")
    if owner in (".schedule", ".buses", ".notifications"):
        record = json.loads(data or b"{}")
        return [f"{path} {[record.get(field) for field in ('cron', 'paused', 'groups')]}"]
    return [f"{owner}: {decode(data)[1].decode()}"] if name.startswith("item-") and owner != "other" else []


async def _left(cluster: Cluster) -> tuple[dict[str, list[str]], list[str]]:
    """Return the place of each message, and the znodes that belong to no message."""
    state: dict[str, list[str]] = {"jobs": [], "results": [], "dead": [], "beside": []}
    leftovers = []
    nodes = cluster.ensemble.tree.nodes
    data = {path: node.data for path, node in nodes.items()}
    items = [path for path in nodes if "/item-" in path or ("/bundle-" in path and "/meta/" not in path)]
    for path, node in nodes.items():
        parts = path.split("/")
        queue, folder, name = parts[2:3], parts[3:4], parts[-1]
        if queue not in (["jobs"], ["results"]):
            state["beside"] += _feature_state(path, node.data)
            continue
        if data.get(f"/zms/{queue[0]}") == DELETED:
            continue  # it does not exist for any client
        if name.startswith("lock-") and is_of_ledger(LockRecord.decode(node.data)):
            state["beside"].append("held by a ledger")
        elif is_bundle(name) and folder != ["meta"]:
            state["jobs"] += left_in(f"/zms/{queue[0]}/", path, data)
        elif name.startswith("item-"):
            state["dead" if folder == ["dlq"] else queue[0]].append(decode(node.data)[1].decode())
        elif (
            name.startswith("lock-")
            or (folder in (["due"], ["consumers"]) and len(parts) > 4)
            or (folder == ["meta"] and not any(name.partition("-")[2] in item for item in items))
        ):
            leftovers.append(f"left: {path}")
    return {name: sorted(values) for name, values in state.items()}, leftovers
