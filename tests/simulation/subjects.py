"""Every public coroutine of the package and its classes, with an object to call it on and its arguments."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import asynccontextmanager, nullcontext
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

import aiozkqueue as zq
import aiozkqueue.admin
import aiozkqueue.bus
import aiozkqueue.schedule
import aiozkqueue.session.connect
from aiozkqueue.admin import QueueAdmin, SessionAdmin
from aiozkqueue.batches.ledger import Ledger
from aiozkqueue.batches.staging import BatchWriter
from aiozkqueue.operations.history_pins import pin
from aiozkqueue.schedule import Scheduler
from aiozkqueue.session.connect import _Connecting
from aiozkqueue.session.internals import handle_of, state_of
from aiozkqueue.session.transaction import TransactionBlock
from aiozkqueue.testing.simulator import Cluster, SimulatedClient
from tests.simulation import bundles_subjects, dialects_subjects, features_subjects, handlers_subjects
from tests.simulation.features_subjects import Ready

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from types import ModuleType

SESSION_TIMEOUT = 6.0


@asynccontextmanager
async def _of_session(session: zq.QueueSession) -> AsyncIterator[Ready]:
    async with session.transaction(autocommit=False) as tx:
        await tx.take(session.queue("jobs"))
        yield Ready(session, session, {"transaction_id": tx.id})


@asynccontextmanager
async def _of_queue(session: zq.QueueSession) -> AsyncIterator[Ready]:
    yield Ready(session.queue("jobs"), session, {})


@asynccontextmanager
async def _of_session_admin(session: zq.QueueSession) -> AsyncIterator[Ready]:
    yield Ready(session.admin, session, {})


@asynccontextmanager
async def _of_queue_admin(session: zq.QueueSession) -> AsyncIterator[Ready]:
    yield Ready(session.queue("jobs").admin, session, {})


@asynccontextmanager
async def _of_ledger(session: zq.QueueSession) -> AsyncIterator[Ready]:
    queue = session.queue("jobs")
    await state_of(queue).open()
    ledger = Ledger(handle_of(queue), "old")
    await ledger.next_batch(0, None)
    yield Ready(queue.admin, session, {})


@asynccontextmanager
async def _of_pin(session: zq.QueueSession) -> AsyncIterator[Ready]:
    queue = session.queue("jobs")
    await pin(handle_of(queue), "old", datetime(2026, 3, 1, tzinfo=UTC))
    yield Ready(queue.admin, session, {})


@asynccontextmanager
async def _of_writer(session: zq.QueueSession) -> AsyncIterator[Ready]:
    queue = session.queue("staged")
    await queue.put(b"seen")
    staging = BatchWriter(handle_of(queue), "writer")
    await staging.begin(1, "run")
    yield Ready(queue.admin, session, {"writer": staging.writer})


@asynccontextmanager
async def _of_dead_letters(session: zq.QueueSession) -> AsyncIterator[Ready]:
    yield Ready(session.queue("jobs").dead_letters, session, {})


@asynccontextmanager
async def _of_transaction(session: zq.QueueSession) -> AsyncIterator[Ready]:
    async with session.transaction(autocommit=False) as tx:
        message = await tx.take(session.queue("jobs"))
        tx.put("results", b"r1")
        yield Ready(tx, session, {"message": message})


@asynccontextmanager
async def _of_delivery(session: zq.QueueSession) -> AsyncIterator[Ready]:
    async with session.queue("jobs").consume(settle="explicit") as deliveries:
        async for delivery in deliveries:
            delivery.put("results", b"r1")
            try:
                yield Ready(delivery, session, {})
            finally:
                if delivery.outcome is zq.Outcome.OPEN:
                    await delivery.rollback(delay=0)
            break


@asynccontextmanager
async def _of_consumer(session: zq.QueueSession) -> AsyncIterator[Ready]:
    consumer = session.queue("jobs").consume(prefetch=4)
    async with consumer as deliveries:
        await anext(aiter(deliveries))
        yield Ready(consumer, session, {})


@asynccontextmanager
async def _of_listener(session: zq.QueueSession) -> AsyncIterator[Ready]:
    seen: set[bytes] = set()

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        delivery.put("results", b"r-" + delivery.value)
        seen.add(delivery.value)
        if len(seen) == 2:
            listener.stop()

    listener = session.listener(session.queue("jobs"), handler, concurrency=2)
    try:
        yield Ready(listener, session, {})
    finally:
        listener.stop()  # it may never have run, which is intended


@asynccontextmanager
async def _of_block(session: zq.QueueSession) -> AsyncIterator[Ready]:
    block: Any = session.transaction()
    tx = await block.__aenter__()
    await tx.take(session.queue("jobs"))
    tx.put("results", b"r1")
    try:
        yield Ready(block, session, {})
    finally:
        if tx.outcome is zq.Outcome.OPEN:
            await tx.rollback(delay=0)


@asynccontextmanager
async def _of_connecting(session: zq.QueueSession) -> AsyncIterator[Ready]:
    zookeeper = session._runtime.zookeeper
    assert isinstance(zookeeper, SimulatedClient)
    cluster = Cluster(cast("Any", zookeeper.session._servers), "connecting")

    async def connect_zookeeper(_: str, **options: Any) -> SimulatedClient:
        return await cluster.client(session_timeout=options["session_timeout"], name="struck")

    with patch.object(aiozkqueue.session.connect, "connect_zookeeper", connect_zookeeper):
        block: Any = zq.connect("simulated:2181", session_timeout=SESSION_TIMEOUT, clock=cluster.clock)
        inner = await block.__aenter__()
        async with inner.transaction(autocommit=False) as tx:
            await tx.take(inner.queue("jobs"))
            tx.put("results", b"r1")
            try:
                yield Ready(block, session, {})
            finally:
                await block.__aexit__(None, None, None)


@asynccontextmanager
async def _of_package(session: zq.QueueSession) -> AsyncIterator[Ready]:
    async with _of_listener(session) as (listener, *_):
        yield Ready(zq, session, {"listeners": [listener]})


@asynccontextmanager
async def _of_app(session: zq.QueueSession) -> AsyncIterator[Ready]:
    app: Any = zq.App("simulated:2181")
    services = app.services

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        delivery.put("results", b"r-" + delivery.value)

    @asynccontextmanager
    async def stopped_soon(own: zq.QueueSession) -> AsyncIterator[Any]:
        async with services(own) as made:
            for service in made:
                asyncio.get_running_loop().call_later(1, service.stop)
            yield made

    app.listener(app.queue("jobs"), concurrency=2)(handler)
    app.connect, app.services = partial(nullcontext, session), stopped_soon
    yield Ready(app, session, {})


SUBJECTS: dict[type | ModuleType, Callable[[zq.QueueSession], Any]] = {
    zq.App: _of_app,
    zq.QueueSession: _of_session,
    zq.Queue: _of_queue,
    SessionAdmin: _of_session_admin,
    QueueAdmin: _of_queue_admin,
    zq.DeadLetters: _of_dead_letters,
    zq.Transaction: _of_transaction,
    zq.Delivery: _of_delivery,
    zq.Consumer: _of_consumer,
    zq.Listener: _of_listener,
    TransactionBlock: _of_block,
    _Connecting: _of_connecting,
    zq: _of_package,
    **features_subjects.SUBJECTS,
    **dialects_subjects.SUBJECTS,
    **bundles_subjects.SUBJECTS,
    **handlers_subjects.SUBJECTS,
}
#: The objects of coroutines that need a special one.
SPECIAL: dict[str, Callable[[zq.QueueSession], Any]] = {
    "QueueAdmin.release_ledger": _of_ledger,
    "QueueAdmin.unpin": _of_pin,
    "QueueAdmin.discard_unfinished": _of_writer,
    **bundles_subjects.SPECIAL,
    **handlers_subjects.SPECIAL,
}

#: The arguments of parameters, by name. Other parameters keep their defaults.
ARGUMENTS: dict[str, Callable[[Ready], Any]] = {
    "value": lambda _: b"new",
    "values": lambda _: [b"new1", b"new2"],
    "queue": lambda ready: ready.session.queue("jobs"),
    "limit": lambda _: 2,
    "claims": lambda ready: list(ready.subject.claims),
    "id": lambda _: "nobody",
    "reason": lambda _: "bad",
    "writer": lambda ready: ready.extras["writer"],
    "message_id": lambda _: "0" * 18,
    "config": lambda _: zq.QueueConfig(shards=2),
    "transaction_id": lambda ready: ready.extras["transaction_id"],
    "kind": lambda _: None,
    "error": lambda _: None,
    "traceback": lambda _: None,
    "signals": lambda _: (),
    "into": lambda _: "others",
    "force": lambda _: True,
    **features_subjects.ARGUMENTS,
}

#: Coroutines of several steps. If they are interrupted, some steps have been done.
GRADUAL = {
    "App.run",
    "aiozkqueue.run",
    "Listener.run",
    "Listener.__aexit__",
    "Listener.__aenter__",
    "Queue.purge",
    "DeadLetters.purge",
    "DeadLetters.redrive",
    "Queue.put_many",
    "QueueAdmin.release_ledger",
    "ForeignQueue.purge",
    "ForeignQueue.put_many",
    "CuratorQueue.remove",
    *bundles_subjects.GRADUAL,
    *handlers_subjects.GRADUAL,
}
#: Settlements that continue after a failure: the message is redelivered, and a warning is logged.
ABSORBING = {"Consumer.__anext__"}
#: Classes whose `__aexit__` does nothing without an earlier `__aenter__`.
ENTERED = (zq.Listener, Scheduler)


def is_coroutine(member: object) -> bool:
    """Whether a function is awaited or asynchronously iterated."""
    return inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)


def subject_of(kind: type | ModuleType, name: str) -> Callable[[zq.QueueSession], Any]:
    """Create the object of a coroutine."""
    return SPECIAL.get(f"{kind.__name__}.{name}", SUBJECTS[kind])


#: Inherited coroutines that are also called on the subclass, because the subclass has other paths and names of znodes.
BY_LAYOUT: dict[type | ModuleType, set[str]] = {
    zq.ForeignQueue: {"put", "put_many", "purge"},
    dialects_subjects.ForeignAdmin: {"release_claims"},
    zq.CuratorQueue: {"put"},
}


def without_a_subject() -> list[str]:
    """Return the public classes that have coroutines, but no object to call them on."""
    return sorted(
        kind.__name__
        for package in (zq, aiozkqueue.admin, aiozkqueue.bus, aiozkqueue.schedule)
        for _, kind in inspect.getmembers(package, inspect.isclass)
        if kind not in SUBJECTS
        if any(not name.startswith("_") for name, _ in inspect.getmembers(kind, is_coroutine))
    )


def coroutines() -> list[tuple[type | ModuleType, str]]:
    """Return the coroutines of the package and of its public classes, with those of ``async with`` and ``async for``.

    An inherited coroutine is called on the base class, and also on the subclass if the layout matters (`BY_LAYOUT`).
    """
    found: list[tuple[type | ModuleType, str]] = []
    for kind in SUBJECTS:
        for name, member in inspect.getmembers(kind, is_coroutine):
            public = not name.startswith("_") or name in ("__aenter__", "__aexit__", "__anext__")
            inherited = any(getattr(base, name, None) is member for base in getattr(kind, "__bases__", ()))
            if public and name != "__aenter__" and not (inherited and name not in BY_LAYOUT.get(kind, ())):
                found.append((kind, name))
    return found


#: The arguments of coroutines with any number of parameters.
ANY_NUMBER: dict[str, Callable[[Ready], list[Any]]] = {
    "queues": lambda _: ["jobs"],
    "services": lambda ready: ready.extras["listeners"],
}


def arguments(ready: Ready, function: Callable[..., Awaitable[object]]) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a coroutine."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    special = {**features_subjects.IN, **dialects_subjects.IN}.get(function.__qualname__, {})
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            named |= ready.extras.get("options", {})
            continue
        if parameter.kind is parameter.VAR_POSITIONAL and parameter.name in ANY_NUMBER:
            positional += ANY_NUMBER[parameter.name](ready)
        elif parameter.name in special or parameter.name in ARGUMENTS:
            value = special.get(parameter.name) or ARGUMENTS[parameter.name](ready)
            if parameter.kind is parameter.KEYWORD_ONLY:
                named[parameter.name] = value
            else:
                positional.append(value)
        elif parameter.default is parameter.empty:
            raise LookupError(
                f"{function.__qualname__} takes {parameter.name!r}: tell tests.simulation.subjects what that is"
            )
    return positional, named
