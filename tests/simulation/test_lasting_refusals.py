"""An operation that a server always refuses, although the data has not changed, is not repeated at once."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

import aiozkqueue as zq
from aiozkqueue.batches.staging import BatchWriter
from aiozkqueue.bus import Bus
from aiozkqueue.schedule import Jobs, Scheduler
from aiozkqueue.session.internals import core_of
from aiozkqueue.zookeeper import (
    BadVersionError,
    Check,
    Create,
    Delete,
    MultiError,
    NoAuthError,
    NoNodeError,
    QuotaExceededError,
    SetData,
)
from aiozkqueue.zookeeper.wire import error_of
from tests.simulation.test_known_configuration import play

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aiozkqueue.zookeeper import Operation, ZooKeeperError

#: A code that ZooKeeper does not document.
UNKNOWN = -77
CALLS = 30
pytestmark = pytest.mark.timeout(60)


class Event(BaseModel):
    """An event without contents."""


def refuse(
    session: zq.QueueSession, where: Callable[[Operation], bool], error: ZooKeeperError | None = None
) -> list[Operation]:
    """Refuse each multi of a session with such an operation; return the list of the refused operations.

    ``error``: why; None: with an undocumented code.
    """
    zookeeper: Any = core_of(session).zookeeper  # its methods are replaced
    refused: list[Operation] = []
    multi = zookeeper.multi

    def checked(operations: Sequence[Operation], **options: Any) -> Any:  # passes all options on
        for index, operation in enumerate(operations):
            if where(operation):
                refused.append(operation)
                return asyncio.ensure_future(refusal(index, operation))
        return multi(operations, **options)

    async def refusal(index: int, operation: Operation) -> None:
        await asyncio.sleep(0.01)
        raise MultiError(index, error or error_of(UNKNOWN, operation.path))

    zookeeper.multi = checked
    return refused


def test_a_scheduler_pauses_if_the_record_of_its_job_cannot_be_written() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, session = sessions
        await Jobs(operator).add("tick", "* * * * * *", "ticks", b"")
        refused = refuse(session, lambda each: isinstance(each, SetData) and each.path.endswith("/.schedule/tick"))
        async with Scheduler(session):
            await asyncio.sleep(120)
        assert 0 < len(refused) < 60

    play(program, 2)


def test_a_post_whose_check_of_the_groups_is_refused_is_not_committed() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, session = sessions
        await Bus(operator, "orders", Event).post(Event())
        refused = refuse(session, lambda each: isinstance(each, Check) and each.path.endswith("/.buses/orders"))
        with pytest.raises(zq.NotCommittedError, match="nothing was committed"):
            await Bus(session, "orders", Event).post(Event())
        assert len(refused) == 1

    play(program, 2)


@pytest.mark.parametrize("call", ["post", "join", "leave"])
def test_a_change_of_a_bus_that_seems_to_have_changed_each_time_fails(call: str) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, session = sessions
        await Bus(operator, "orders", Event).join("audit")
        bus = Bus(session, "orders", Event)
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "post": lambda: bus.post(Event()),
            "join": lambda: bus.join("other"),
            "leave": lambda: bus.leave("audit"),
        }
        refused = refuse(session, lambda each: each.path.endswith("/.buses/orders"), BadVersionError())
        async with asyncio.timeout(60):
            with pytest.raises(zq.NotCommittedError, match="compare this znode on all ZooKeeper servers"):
                await calls[call]()
        assert len(refused) == 3

    play(program, 2)


def test_a_bus_that_is_not_found_after_its_creation_fails_a_post() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        (session,) = sessions
        zookeeper: Any = core_of(session).zookeeper  # its methods are replaced
        reads = list[str]()

        async def missing(path: str, **_: Any) -> Any:  # Any: options are ignored
            reads.append(path)
            raise NoNodeError(path)

        zookeeper.read = missing
        async with asyncio.timeout(60):
            with pytest.raises(zq.NotCommittedError, match="is not found, although it was created"):
                await Bus(session, "orders", Event).post(Event())
        assert len(reads) < 10

    play(program, 1)


@pytest.mark.parametrize("bundle", [1, 64])
def test_a_move_ends_if_its_messages_cannot_be_locked(bundle: int) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        (session,) = sessions
        jobs = session.queue("jobs")
        await jobs.configure(zq.QueueConfig(bundle=bundle))
        await jobs.put_many([b"1", b"2", b"3"])
        refused = refuse(session, lambda each: isinstance(each, Create) and "/jobs/locks/" in each.path)
        reference = await session.admin.moves.start("jobs", "elsewhere")
        await asyncio.sleep(60)
        assert (await session.admin.moves.status(reference)).state == "failed"
        assert 0 < len(refused) < 30
        assert await jobs.size() == 3

    play(program, 1)


def test_a_move_whose_record_cannot_be_written_does_not_write_it_again_and_again() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        (session,) = sessions
        await session.queue("jobs").put_many([b"1", b"2", b"3"])
        refused = refuse(session, lambda each: isinstance(each, SetData) and "/.moves/" in each.path)
        await session.admin.moves.start("jobs", "elsewhere")
        await asyncio.sleep(60)
        assert await session.queue("elsewhere").size() == 3
        assert 0 < len(refused) < 30

    play(program, 1)


@pytest.mark.parametrize("error", [NoAuthError(), error_of(UNKNOWN)], ids=["ACL", "unknown code"])
def test_a_session_goes_on_if_the_record_of_its_move_cannot_be_read(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        (session,) = sessions
        await session.queue("jobs").put_many([b"1", b"2", b"3"])
        zookeeper: Any = core_of(session).zookeeper  # its methods are replaced
        read = zookeeper.read

        async def refusing(path: str, **options: Any) -> Any:  # passes all options on
            if "/.moves/" in path:
                raise error
            return await read(path, **options)

        zookeeper.read = refusing
        reference = await session.admin.moves.start("jobs", "elsewhere")
        await asyncio.sleep(60)
        warnings = [record.getMessage() for record in caplog.records if reference in record.getMessage()]
        assert len(warnings) == 2  # why it failed, and that its record does not show it
        assert await session.queue("jobs").size() == 3
        zookeeper.read = read
        assert await session.admin.moves.resume() == 1
        await asyncio.sleep(60)
        assert await session.queue("elsewhere").size() == 3

    play(program, 1)


def test_a_move_is_left_to_another_session_if_this_one_may_not_begin_it(caplog: pytest.LogCaptureFixture) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        session, other = sessions
        await session.queue("jobs").put_many([b"1", b"2", b"3"])
        refused = refuse(session, lambda each: isinstance(each, Create) and each.path.endswith("/runner"))
        reference = await session.admin.moves.start("jobs", "elsewhere")
        await asyncio.sleep(60)
        assert f"move {reference} is left to another session" in caplog.text
        assert len(refused) == 1
        assert await other.admin.moves.resume() == 1
        await asyncio.sleep(60)
        assert (await session.admin.moves.status(reference)).state == "done"

    play(program, 2)


def test_a_listener_ends_if_the_check_of_the_configuration_is_refused() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, session = sessions
        await operator.queue("jobs").put(b"1")

        async def handle(_: zq.Delivery[bytes]) -> None:
            raise AssertionError

        refused = refuse(session, lambda each: isinstance(each, Check) and each.path == "/zms/jobs")
        async with asyncio.timeout(120):
            with pytest.raises(zq.ConnectionLostError):
                await session.listener(session.queue("jobs"), handle).run()
        assert len(refused) < 10

    play(program, 2)


def test_a_commit_whose_record_of_the_history_is_refused_is_not_repeated() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, session = sessions
        jobs, record = operator.queue("jobs"), re.compile("/zms/jobs/history/[^/]+/")
        await jobs.configure(zq.QueueConfig(history=zq.History()))
        await jobs.put_many([b"1", b"2"])
        async with operator.transaction() as tx:
            assert await tx.take(jobs, timeout=5) is not None
        refused = refuse(session, lambda each: isinstance(each, Create) and record.match(each.path) is not None)
        with pytest.raises(zq.NotCommittedError, match="history"):
            async with session.transaction() as tx:
                assert await tx.take(session.queue("jobs"), timeout=5) is not None
        assert len(refused) == 1

    play(program, 2)


@pytest.mark.parametrize("number", [1, 150])
@pytest.mark.parametrize(
    ("kind", "where"), [(Delete, "/zms/jobs/items/"), (Check, "/zms/jobs/items/"), (Check, "/zms/jobs")]
)
def test_a_take_ends_if_the_removal_of_duplicates_is_refused(
    number: int, kind: type[Delete | Check], where: str
) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, session = sessions
        jobs = operator.queue("jobs")
        await jobs.configure(zq.QueueConfig(collapse=True))
        await jobs.put_many([b"1"] * (number + 1))
        refused = refuse(session, lambda each: isinstance(each, kind) and each.path.startswith(where))
        with pytest.raises(zq.ConnectionLostError):
            async with session.transaction() as tx:
                await tx.take(session.queue("jobs"), timeout=60)
        assert len(refused) < 10
        assert await jobs.size() == number + 1

    play(program, 2)


def test_a_batch_whose_lock_has_children_is_not_completed() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        (session,) = sessions
        handle, zookeeper = core_of(session).handle("jobs"), core_of(session).zookeeper
        writer = BatchWriter(handle, "writer")
        fence = await writer.begin(0, "run")
        assert fence is not None
        await zookeeper.multi([Create(f"{fence.lock}/foreign")])
        async with asyncio.timeout(60):
            with pytest.raises(zq.NotCommittedError):
                await writer.complete(0)
            with pytest.raises(zq.NotCommittedError):
                await writer.abort(0)

    play(program, 1)


@pytest.mark.parametrize("error", [NoAuthError(), error_of(UNKNOWN)], ids=["ACL", "unknown code"])
def test_the_next_message_of_a_held_group_is_not_read_again_and_again(error: Exception) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, session = sessions
        jobs = session.queue("jobs")
        await jobs.configure(zq.QueueConfig(ordered=True))
        await jobs.put(b"1")
        zookeeper: Any = core_of(session).zookeeper  # its methods are replaced
        reads = list[str]()

        async def refusing(paths: Sequence[str], **_: Any) -> Any:  # Any: options are ignored
            reads.extend(paths)
            await asyncio.sleep(0.01)
            raise error

        async with session.transaction() as tx:
            assert await tx.take(jobs, timeout=5) is not None
            read, zookeeper.read_versioned = zookeeper.read_versioned, refusing
            await operator.queue("jobs").put(b"2")
            assert await tx.take(jobs, timeout=60) is None
            zookeeper.read_versioned = read
            assert 0 < len(reads) < 60
        async with session.transaction() as tx:
            message = await tx.take(jobs, timeout=5)
            assert message is not None
            assert message.body == b"2"

    play(program, 2)


def test_an_answer_that_cannot_be_removed_is_not_tried_again_with_each_further_answer() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        worker, session = sessions

        async def handle(delivery: zq.Delivery[bytes]) -> None:
            delivery.reply(delivery.body)

        refused = refuse(session, lambda each: isinstance(each, Delete) and "/reply-" in each.path)
        async with worker.listener(worker.queue("jobs"), handle):
            for number in range(CALLS):
                body = b"%d" % number
                assert await session.queue("jobs").call(body, timeout=10) == body
        assert CALLS <= len(refused) <= 2 * CALLS

    play(program, 2)


def test_a_rate_whose_record_cannot_be_changed_is_tried_ever_more_rarely(caplog: pytest.LogCaptureFixture) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, session = sessions
        await operator.queue("jobs").put(b"1")
        core, restored = core_of(session), core_of(session).zookeeper.multi
        refused = refuse(session, lambda each: isinstance(each, SetData) and "/.rates/" in each.path, BadVersionError())
        async with session.listener(session.queue("jobs"), consume, rate=10):
            await asyncio.sleep(60)
            assert 0 < len(refused) < 120
            before = len(refused)
            await asyncio.sleep(60)
            assert len(refused) - before < 60
            assert caplog.text.count("rate /zms/.rates/jobs: no call can begin") == 1
            core.zookeeper.multi = restored  # type: ignore[method-assign]  # it was replaced
            await asyncio.sleep(10)
            assert await operator.queue("jobs").size() == 0

    play(program, 2)


async def consume(_: zq.Delivery[bytes]) -> None:
    """Do nothing."""


async def echo(delivery: zq.Delivery[bytes]) -> None:
    delivery.reply(delivery.body)


@pytest.mark.parametrize("error", [NoAuthError(), error_of(UNKNOWN)], ids=["ACL", "unknown code"])
def test_calls_get_replies_again_once_their_folder_can_be_listed(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        worker, session = sessions
        zookeeper: Any = core_of(session).zookeeper  # its methods are replaced
        children, refused = zookeeper.children, list[str]()

        async def refusing(path: str, **options: Any) -> Any:  # passes all options on
            if "/.clients/" in path:
                refused.append(path)
                raise error
            return await children(path, **options)

        zookeeper.children = refusing
        async with worker.listener(worker.queue("jobs"), echo):
            with pytest.raises(zq.errors.NoReplyError):
                await session.queue("jobs").call(b"1", timeout=60)
            assert 0 < len(refused) < 30
            assert caplog.text.count("calls get no replies; the next try is in 5 s") == 1
            zookeeper.children = children
            assert await session.queue("jobs").call(b"2", timeout=60) == b"2"

    play(program, 2)


def test_a_reply_that_may_not_be_read_fails_its_call_and_no_other() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        worker, session = sessions
        zookeeper: Any = core_of(session).zookeeper  # its methods are replaced
        denied = set[str]()

        def hide(read: Any) -> Any:  # Any: a method of the client
            async def refusing(paths: Sequence[str], **options: Any) -> Any:  # passes all options on
                if not denied:
                    denied.update(path for path in paths if "/reply-" in path)
                if hidden := denied.intersection(paths):
                    raise NoAuthError(min(hidden))
                return await read(paths, **options)

            return refusing

        zookeeper.read_many, zookeeper.read_versioned = hide(zookeeper.read_many), hide(zookeeper.read_versioned)
        async with worker.listener(worker.queue("jobs"), echo):
            with pytest.raises(zq.AccessDeniedError, match="its reply cannot be read"):
                await session.queue("jobs").call(b"1", timeout=60)
            assert await session.queue("jobs").call(b"2", timeout=60) == b"2"

    play(program, 2)


def test_a_commit_whose_record_in_the_history_is_refused_is_not_repeated() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        (session,) = sessions
        jobs = session.queue("jobs")
        await jobs.configure(zq.QueueConfig(history=zq.History(lifetime=3600)))
        await jobs.put(b"1")
        refused = refuse(session, lambda each: isinstance(each, Create) and "/jobs/history/" in each.path)
        with pytest.raises(zq.NotCommittedError, match="nothing was applied"):
            async with session.transaction() as tx:
                assert await tx.take(jobs, timeout=5) is not None
        assert len(refused) < 5

    play(program, 1)


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (NoAuthError(), "use the credentials of a user whom the ACL allows"),
        (QuotaExceededError(), "raise the quota"),
        (error_of(UNKNOWN), "the logs of the servers may show why"),
    ],
    ids=["ACL", "quota", "unknown code"],
)
def test_the_remedy_for_a_message_that_cannot_become_a_dead_letter_fits_the_refusal(
    error: ZooKeeperError, remedy: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        (session,) = sessions
        jobs = session.queue("jobs")
        await jobs.configure(zq.QueueConfig(bundle=1, policy=zq.ConsumeOnce()))
        await jobs.put(b"1")
        refuse(session, lambda each: isinstance(each, Create) and "/jobs/dlq/" in each.path, error)
        async with session.transaction() as tx:
            assert await tx.take(jobs, timeout=5) is not None
            await tx.rollback()
        async with session.transaction() as tx:
            assert await tx.take(jobs, timeout=5) is None
        (text,) = [record.getMessage() for record in caplog.records if "cannot be removed" in record.getMessage()]
        assert remedy in text
        assert "delete the znodes below" not in text

    play(program, 1)
