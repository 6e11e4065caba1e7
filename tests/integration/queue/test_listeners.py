"""The rules of listeners, and of `run`, which serves several of them until a signal arrives."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.errors import ConfigConflictError
from tests.integration.queue.conftest import Locks, eventually, no_locks, take_one

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from aiozkqueue.listeners import Batch


class Handler:
    """Counts its calls; with ``waits``, each call waits until it is released."""

    def __init__(self, *, waits: bool = False) -> None:
        self.values: list[bytes] = []
        self.finished = 0
        self.cancelled = 0
        self.cancelled_at = 0.0
        self.started = asyncio.Event()
        self.go = asyncio.Event()
        if not waits:
            self.go.set()

    async def __call__(self, delivery: zq.Delivery[bytes]) -> None:
        self.values.append(delivery.value)
        self.started.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            self.cancelled_at = asyncio.get_running_loop().time()
            raise
        self.finished += 1


@pytest.fixture
async def jobs(session: zq.QueueSession) -> zq.Queue[bytes]:
    return session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(0)))


async def emptied(queue: zq.Queue[bytes]) -> None:
    async def empty() -> bool:
        return await queue.size() == 0

    await eventually(empty)


# How a delivery ends


async def test_a_handler_that_returns_commits_its_message_and_its_puts(
    session: zq.QueueSession, jobs: zq.Queue[bytes]
) -> None:
    async def copy(delivery: zq.Delivery[bytes]) -> None:
        delivery.put("results", delivery.value)

    await jobs.put_many([b"1", b"2"])
    async with session.listener(jobs, copy, concurrency=2):
        await emptied(jobs)
    assert sorted(message.value for message in await session.queue("results").peek()) == [b"1", b"2"]


async def test_a_message_that_its_handler_settled_is_not_settled_again(
    session: zq.QueueSession, jobs: zq.Queue[bytes]
) -> None:
    async def settle(delivery: zq.Delivery[bytes]) -> None:
        if delivery.value == b"reject":
            await delivery.reject("mine")
        elif delivery.value == b"later":
            await delivery.rollback(delay=60)
        else:
            async with delivery:
                delivery.put("results", delivery.value)

    await jobs.put_many([b"reject", b"later", b"1"])
    async with session.listener(jobs, settle):

        async def settled() -> bool:
            stats = await jobs.stats()
            return (stats.size, stats.delayed, stats.dead_letters) == (1, 1, 1)

        await eventually(settled)
    assert await session.queue("results").size() == 1


async def test_retry_and_reject_end_a_delivery(session: zq.QueueSession, jobs: zq.Queue[bytes]) -> None:
    attempts = []

    async def handle(delivery: zq.Delivery[bytes]) -> None:
        attempts.append(delivery.attempt)
        if delivery.value == b"reject":
            raise zq.Reject("no such order")
        if delivery.attempt < 3:
            raise zq.Retry(delay=0)
        if delivery.attempt == 3:
            raise zq.Retry(delay=60)

    await jobs.put_many([b"reject", b"retry"])
    async with session.listener(jobs, handle):

        async def settled() -> bool:
            return (await jobs.stats()).delayed == 1

        await eventually(settled)
    assert sorted(attempts) == [1, 1, 2, 3]
    assert [dead.reason for dead in await jobs.dead_letters.peek()] == ["no such order"]


async def raise_in_group(error: Exception) -> None:
    """Raise an error in a task of a group."""

    async def fail() -> None:
        raise error

    async with asyncio.TaskGroup() as group:
        group.create_task(fail())


@pytest.mark.parametrize("way", ["single", "batch", "failed", "loop"])
async def test_retry_and_reject_of_a_task_group_end_a_delivery(
    way: str, session: zq.QueueSession, jobs: zq.Queue[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    def error_of(value: bytes) -> Exception:
        return zq.Reject("no such order") if value == b"reject" else zq.Retry(delay=60)

    async def handle(delivery: zq.Delivery[bytes]) -> None:
        await raise_in_group(error_of(delivery.value))

    async def store(batch: Batch[bytes]) -> None:
        if way == "failed":
            batch.fail(batch[0], ExceptionGroup("of a caller", [error_of(batch[0].value)]))
        else:
            await raise_in_group(error_of(batch[0].value))

    async def settled() -> bool:
        stats = await jobs.stats()
        return (stats.delayed, stats.dead_letters) == (1, 1)

    await jobs.put_many([b"reject", b"retry"])
    if way == "loop":
        async with jobs.consume(until_idle=0) as deliveries:
            async for delivery in deliveries:
                with suppress(ExceptionGroup):
                    async with delivery:
                        await handle(delivery)
    else:
        made = session.listener(jobs, handle) if way == "single" else session.listener(jobs, store, batch=1)
        async with made:
            await eventually(settled)
    await eventually(settled)
    assert [dead.reason for dead in await jobs.dead_letters.peek()] == ["no such order"]
    if way in {"single", "batch"}:
        assert "handler failed" not in caplog.text


@pytest.mark.parametrize(
    ("errors", "reason"),
    [
        ([ValueError("no price")], "last error: ValueError: no price"),
        (
            [ExceptionGroup("in", [ValueError("no price"), KeyError("id")]), zq.Reject("unknown")],
            "last error: ExceptionGroup: all (2 sub-exceptions): ValueError: no price; KeyError: 'id'; Reject: unknown",
        ),
    ],
)
async def test_a_dead_letter_names_the_errors_of_a_group(
    errors: list[Exception], reason: str, session: zq.QueueSession
) -> None:
    async def handle(_: object) -> None:
        raise ExceptionGroup("all", errors)

    jobs = session.queue("jobs", policy=zq.ConsumeTimes(1))
    await jobs.put(b"1")
    async with session.listener(jobs, handle):
        await emptied(jobs)
    (dead,) = await jobs.dead_letters.peek()
    assert dead.reason == f"delivered 1 of 1 times without success; {reason}"


async def test_the_figures_of_a_listener_count_a_failed_message_once(
    session: zq.QueueSession, jobs: zq.Queue[bytes]
) -> None:
    async def handle(delivery: zq.Delivery[bytes]) -> None:
        if delivery.value == b"bad":
            raise zq.Reject("no such order")

    await jobs.put_many([b"good", b"bad"])
    async with session.listener(jobs, handle) as listener:
        await emptied(jobs)
    assert listener._summary() == "1 message handled, 1 failed"


async def test_concurrency_bounds_handlers_and_claims(
    session: zq.QueueSession, jobs: zq.Queue[bytes], locks: Locks
) -> None:
    handler = Handler(waits=True)
    await jobs.put_many([b"1"] * 10)
    async with session.listener(jobs, handler, concurrency=3):

        async def three() -> bool:
            return len(handler.values) == 3

        await eventually(three)
        await asyncio.sleep(0.2)
        assert len(handler.values) == len(await locks()) == 3  # claimed only for free slots
        handler.go.set()
        await emptied(jobs)
    assert handler.finished == 10


# Stopping


async def test_stop_lets_handlers_finish_and_claims_nothing_more(
    session: zq.QueueSession, jobs: zq.Queue[bytes], locks: Locks
) -> None:
    handler = Handler(waits=True)
    await jobs.put_many([b"1", b"2"])
    listener = session.listener(jobs, handler)
    running = asyncio.create_task(listener.run())
    await handler.started.wait()
    listener.stop()
    listener.stop()
    await asyncio.sleep(0.1)
    assert not running.done()
    handler.go.set()
    await asyncio.wait_for(running, 30)
    assert (handler.finished, await jobs.size(), await locks()) == (1, 1, [])


async def test_handlers_that_exceed_the_deadline_are_cancelled_and_their_messages_released(
    session: zq.QueueSession, locks: Locks
) -> None:
    jobs = session.queue("jobs")  # with the default policy, which redelivers a second after a failure
    handler = Handler(waits=True)
    await jobs.put(b"1")
    listener = session.listener(jobs, handler, drain_timeout=0.2)
    running = asyncio.create_task(listener.run())
    await handler.started.wait()
    listener.stop()
    await asyncio.wait_for(running, 30)
    assert (handler.cancelled, await locks()) == (1, [])
    assert (await take_one(session)).value == b"1"


async def test_a_listener_runs_once_at_a_time_and_stays_stopped_after_it_stops_when_idle(
    session: zq.QueueSession, jobs: zq.Queue[bytes]
) -> None:
    handler = Handler()
    listener = session.listener(jobs, handler)
    running = asyncio.create_task(listener.run())
    await asyncio.sleep(0.2)
    with pytest.raises(RuntimeError, match="is already running"):
        await listener.run()
    listener.stop()
    await asyncio.wait_for(running, 30)
    await jobs.put(b"1")
    await asyncio.wait_for(listener.run(), 30)
    assert (handler.values, await jobs.size()) == ([], 1)


async def test_a_listener_whose_run_was_cancelled_may_run_again(
    session: zq.QueueSession, jobs: zq.Queue[bytes]
) -> None:
    handler = Handler(waits=True)
    await jobs.put_many([b"1", b"2", b"3"])
    listener = session.listener(jobs, handler, concurrency=2)
    running = asyncio.create_task(listener.run())
    await handler.started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    handler.go.set()
    async with listener:
        await emptied(jobs)
    assert handler.finished == 3


async def test_a_cancelled_run_cancels_its_handlers_and_leaves_no_lock(
    session: zq.QueueSession, jobs: zq.Queue[bytes], locks: Locks
) -> None:
    handler = Handler(waits=True)
    await jobs.put_many([b"1", b"2", b"3"])
    running = asyncio.create_task(session.listener(jobs, handler, concurrency=2).run())
    await handler.started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await locks() == []
    assert await jobs.size() == 3


async def test_leaving_the_block_stops_the_listener_and_waits_for_its_handlers(
    session: zq.QueueSession, jobs: zq.Queue[bytes]
) -> None:
    handler = Handler(waits=True)
    await jobs.put(b"1")
    async with session.listener(jobs, handler):
        await handler.started.wait()
        asyncio.get_running_loop().call_later(0.2, handler.go.set)
    assert handler.finished == 1
    assert await jobs.size() == 0


async def test_the_block_can_be_entered_and_left_in_different_tasks(
    session: zq.QueueSession, jobs: zq.Queue[bytes]
) -> None:
    handler = Handler()
    listener = session.listener(jobs, handler)
    await asyncio.create_task(listener.__aenter__())
    await jobs.put(b"1")
    await emptied(jobs)
    await asyncio.create_task(listener.__aexit__(None, None, None))
    assert handler.finished == 1


async def test_the_block_of_a_listener_raises_an_exception_of_its_body_unchanged(
    session: zq.QueueSession, jobs: zq.Queue[bytes]
) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with session.listener(jobs, Handler()):
            raise KeyError("mine")


# Failing


@pytest.fixture
async def contested(session: zq.QueueSession, other: zq.QueueSession) -> zq.Queue[bytes]:
    """A queue whose listener in another session fails, because it requests another policy."""
    await session.queue("jobs", policy=zq.ConsumeTimes(5)).put(b"1")
    return other.queue("jobs", policy=zq.ConsumeTimes(7))


async def test_a_failing_listener_cancels_the_body_of_its_block_and_raises_its_own_error(
    other: zq.QueueSession, contested: zq.Queue[bytes]
) -> None:
    waited = False
    with pytest.raises(ConfigConflictError, match="configure"):
        async with other.listener(contested, Handler()):
            waited = True
            await asyncio.sleep(20)
            pytest.fail("the body was not cancelled")
    assert waited
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)  # raises if a part of the cancellation is left


async def test_run_raises_the_error_of_a_failing_listener_and_stops_the_others(
    session: zq.QueueSession, other: zq.QueueSession, contested: zq.Queue[bytes]
) -> None:
    healthy = other.listener(other.queue("mail"), Handler())
    with pytest.raises(ConfigConflictError, match="'jobs'"):
        await asyncio.wait_for(zq.run(other.listener(contested, Handler()), healthy), 30)
    await session.queue("mail").put(b"1")
    await asyncio.sleep(0.2)
    assert await session.queue("mail").size() == 1


async def test_closing_a_session_ends_its_listeners_with_an_error(
    zookeeper: str, queue_root: str, session: zq.QueueSession
) -> None:
    handler = Handler(waits=True)
    await session.queue("jobs").put(b"1")
    async with zq.connect(zookeeper, root=queue_root, session_timeout=20) as closing:
        running = asyncio.create_task(closing.listener(closing.queue("jobs"), handler).run())
        idle = asyncio.create_task(closing.listener(closing.queue("mail"), handler).run())
        await handler.started.wait()
        handler.go.set()
        await asyncio.sleep(0)
    for ended in (running, idle):
        with pytest.raises(zq.SessionClosedError):
            await asyncio.wait_for(ended, 30)


async def test_a_handler_cannot_close_its_own_session(
    zookeeper: str, queue_root: str, caplog: pytest.LogCaptureFixture
) -> None:
    connecting = zq.connect(zookeeper, root=queue_root, session_timeout=20)
    session = await connecting.__aenter__()
    jobs = session.queue("jobs")
    closed = asyncio.Event()

    async def close(delivery: zq.Delivery[bytes]) -> None:
        if delivery.attempt == 1:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(0))
            await connecting.__aexit__(None, None, None)

    async def close_later(_: zq.Delivery[bytes]) -> None:
        async def leave() -> None:
            await connecting.__aexit__(None, None, None)
            closed.set()

        leaving.append(asyncio.create_task(leave()))

    leaving: list[asyncio.Task[None]] = []
    await jobs.put(b"1")
    async with session.listener(jobs, close):
        await emptied(jobs)
    assert "a handler cannot close its own session" in caplog.text
    await jobs.put(b"2")
    with pytest.raises(zq.SessionClosedError):
        async with session.listener(jobs, close_later):
            await closed.wait()
            await asyncio.sleep(30)
    await asyncio.gather(*leaving)


async def in_a_group(close: Coroutine[Any, Any, bool | None]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(close)


async def in_a_task(close: Coroutine[Any, Any, bool | None]) -> None:
    await asyncio.create_task(close)


@pytest.mark.parametrize("settled", [False, True], ids=["open", "settled"])
@pytest.mark.parametrize("run", [in_a_group, in_a_task, asyncio.gather], ids=["group", "task", "gather"])
async def test_a_task_that_a_handler_waits_for_closes_the_session(
    zookeeper: str,
    queue_root: str,
    session: zq.QueueSession,
    run: Callable[[Coroutine[Any, Any, bool | None]], Awaitable[object]],
    settled: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    connecting = zq.connect(zookeeper, root=queue_root, session_timeout=20)
    closing = await connecting.__aenter__()
    await closing.queue("jobs").put_many([b"1", b"2"])

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        if settled:
            await delivery.commit()
        await run(connecting.__aexit__(None, None, None))

    async with asyncio.timeout(40):
        with pytest.raises(zq.SessionClosedError):
            async with closing.listener(closing.queue("jobs"), handler):
                await asyncio.sleep(600)
        left: list[bytes] = []
        async with session.queue("jobs").consume() as deliveries:
            while len(left) < 2 - settled:
                left.append((await anext(deliveries)).body)
    assert sorted(left) == ([b"2"] if settled else [b"1", b"2"])


async def test_a_handler_that_raises_an_exit_ends_the_listener_with_it(
    session: zq.QueueSession, jobs: zq.Queue[bytes], locks: Locks
) -> None:
    class StopEverything(BaseException):
        pass

    async def stop(_: zq.Delivery[bytes]) -> None:
        raise StopEverything

    await jobs.put(b"1")
    with pytest.raises(StopEverything):
        await session.listener(jobs, stop).run()
    await no_locks(locks)
    assert await jobs.size() == 1


async def test_a_handler_that_awaits_a_cancelled_task_fails_and_the_listener_continues(
    session: zq.QueueSession, jobs: zq.Queue[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    async def wait(delivery: zq.Delivery[bytes]) -> None:
        if delivery.attempt == 1:
            child = asyncio.create_task(asyncio.sleep(60))
            child.cancel()
            await child

    await jobs.put_many([b"1", b"2", b"3"])
    listener = session.listener(jobs, wait, concurrency=2)
    async with listener:
        await emptied(jobs)
        await jobs.put(b"4")
        await emptied(jobs)
    errors = [record.exc_info[1] for record in caplog.records if record.exc_info is not None]
    assert [type(error) for error in errors] == [RuntimeError] * 4
    assert all(str(error).startswith("the handler was not cancelled") for error in errors)


tenant: ContextVar[str] = ContextVar("tenant", default="")


@pytest.mark.parametrize("batch", [False, True])
async def test_a_handler_does_not_get_the_context_variables_of_the_handler_before(
    *, batch: bool, session: zq.QueueSession, jobs: zq.Queue[bytes]
) -> None:
    seen: list[str] = []

    async def handle(_: object) -> None:
        seen.append(tenant.get())
        tenant.set("of another message")

    await jobs.put_many([b"1", b"2", b"3"])
    token = tenant.set("of the program")
    try:
        made = session.listener(jobs, handle, batch=1) if batch else session.listener(jobs, handle, concurrency=1)
        async with made:
            await emptied(jobs)
    finally:
        tenant.reset(token)
    assert seen == ["of the program"] * 3


# Lost claims


@pytest.mark.parametrize("on_lost", ["finish", "cancel"])
async def test_on_lost_decides_whether_a_handler_with_a_lost_claim_is_cancelled(
    on_lost: str,
    session: zq.QueueSession,
    jobs: zq.Queue[bytes],
    expire: Callable[[zq.QueueSession], Awaitable[None]],
) -> None:
    handler = Handler(waits=True)
    await jobs.put(b"1")
    async with session.listener(jobs, handler, on_lost="cancel" if on_lost == "cancel" else "finish"):
        await handler.started.wait()
        await expire(session)

        async def cancelled() -> bool:
            return handler.cancelled == 1

        if on_lost == "cancel":
            await eventually(cancelled)
        else:
            await asyncio.sleep(0.2)
            assert handler.cancelled == 0
        handler.go.set()
        await emptied(jobs)  # it was redelivered and handled completely
    assert handler.values == [b"1", b"1"]


# Signals


async def served(*listeners: zq.Listener[bytes], drain_timeout: float = 10) -> asyncio.Task[None]:
    task = asyncio.create_task(zq.run(*listeners, drain_timeout=drain_timeout))
    await asyncio.sleep(0.1)
    return task


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_all_listeners_and_lets_their_handlers_finish(
    number: signal.Signals, session: zq.QueueSession, jobs: zq.Queue[bytes]
) -> None:
    handler, idle = Handler(waits=True), Handler()
    await jobs.put_many([b"1", b"2"])
    running = await served(session.listener(jobs, handler), session.listener(session.queue("mail"), idle))
    await handler.started.wait()
    os.kill(os.getpid(), number)
    await asyncio.sleep(0.1)
    assert not running.done()
    handler.go.set()
    await asyncio.wait_for(running, 30)
    assert (handler.finished, await jobs.size()) == (1, 1)


async def test_a_second_signal_stops_at_once(session: zq.QueueSession, jobs: zq.Queue[bytes], locks: Locks) -> None:
    handler = Handler(waits=True)
    await jobs.put(b"1")
    running = await served(session.listener(jobs, handler))
    await handler.started.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(0.1)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(running, 30)
    assert (handler.cancelled, await locks()) == (1, [])


async def test_all_listeners_share_one_deadline_and_the_log_names_those_that_exceeded_it(
    session: zq.QueueSession, jobs: zq.Queue[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    handlers = [Handler(waits=True) for _ in range(3)]
    queues = [jobs, session.queue("mail"), session.queue("news")]
    for queue in queues:
        await queue.put(b"1")
    running = await served(
        *(session.listener(queue, handler) for queue, handler in zip(queues, handlers, strict=True)), drain_timeout=1
    )
    for handler in handlers:
        await handler.started.wait()
    start = asyncio.get_running_loop().time()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(running, 30)
    assert [handler.cancelled for handler in handlers] == [1, 1, 1]
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    for queue in queues:
        assert any(
            f"listener of queue {queue.name}:" in line and "did not finish within 1 s and are cancell" in line
            for line in logged
        )
    at = sorted(handler.cancelled_at for handler in handlers)
    assert at[0] - start > 0.9
    assert at[-1] - at[0] < 1  # concurrently


async def test_the_signal_handlers_of_the_program_are_restored_afterwards(
    session: zq.QueueSession, jobs: zq.Queue[bytes]
) -> None:
    listener = session.listener(jobs, Handler())
    running = await served(listener)
    listener.stop()
    await asyncio.wait_for(running, 30)
    with suppress(ValueError):
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with pytest.raises(zq.InvalidOptionError, match="drain_timeout"):
        await zq.run(drain_timeout=-1)
