"""Error codes for whole requests: no message is lost, and callers see the names of the codes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import run_virtual, simulated
from aiozkqueue.testing.simulator import Fault, Kind
from aiozkqueue.zookeeper import (
    ConnectionLossError,
    Create,
    Delete,
    MultiError,
    NoAuthError,
    ProtocolError,
    QuotaExceededError,
)
from aiozkqueue.zookeeper.wire import THROTTLED, error_of
from tests.simulation.test_known_configuration import play

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiozkqueue.testing.simulator import Request
    from aiozkqueue.testing.simulator.server import ServerConnection
    from aiozkqueue.zookeeper import Operation, ZooKeeperError

    Refusal = int | Callable[[Sequence[Operation]], Exception]


class Refusing:
    """Refuses those multis of a session that a function chooses by their numbers.

    A ``refusal`` is an error code, or a function that returns the error for the operations of a multi.
    """

    def __init__(self, session: zq.QueueSession, refusal: Refusal, chooses: Callable[[int], bool]) -> None:
        zookeeper: Any = core_of(session).zookeeper  # its methods are replaced
        self._zookeeper = zookeeper
        self._multi = zookeeper.multi
        self._refusal = refusal
        self._chooses = chooses
        self._number = 0
        self._zookeeper.multi = self._answered

    def stop(self) -> None:
        self._zookeeper.multi = self._multi

    def _answered(self, operations: Sequence[Operation], **options: Any) -> Any:
        self._number += 1
        if not self._chooses(self._number):
            return self._multi(operations, **options)
        return asyncio.ensure_future(self._refuse(operations))

    async def _refuse(self, operations: Sequence[Operation]) -> None:
        await asyncio.sleep(0.01)
        raise error_of(self._refusal) if isinstance(self._refusal, int) else self._refusal(operations)


@pytest.mark.parametrize("bundle", [1, 64], ids=["single items", "bundles"])
@pytest.mark.parametrize("first", range(3))
def test_requests_that_a_busy_server_drops_are_sent_again(bundle: int, first: int) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        producer, consumer = sessions
        jobs = producer.queue("jobs")
        await jobs.configure(zq.QueueConfig(bundle=bundle))
        for session in sessions:
            Refusing(session, THROTTLED, lambda number: number % 3 == first)
        await jobs.put(b"0")
        await jobs.put_many([b"%d" % number for number in range(1, 50)])
        taken: list[bytes] = []
        while len(taken) < 50:
            async with consumer.transaction() as tx:
                taken += [message.body for message in await tx.take_many(consumer.queue("jobs"), 9, timeout=5)]
        assert sorted(taken) == sorted(b"%d" % number for number in range(50))
        assert await jobs.size() == 0

    play(program, 2)


def test_a_request_that_a_server_refuses_as_a_whole_is_not_committed() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, session = sessions
        jobs, mine = operator.queue("jobs"), session.queue("jobs")
        await mine.put(b"0")
        async with session.transaction(autocommit=False) as tx:
            assert await tx.take(mine, timeout=1)
            refusing = Refusing(session, -1, lambda _: True)
            with pytest.raises(zq.NotCommittedError, match=r"SYSTEMERROR.*nothing was applied"):
                await tx.commit()
        with pytest.raises(zq.NotCommittedError, match=r"SYSTEMERROR.*nothing was applied"):
            await mine.put(b"1")
        refusing.stop()
        await mine.put(b"2")
        assert [message.body for message in await jobs.peek()] == [b"0", b"2"]

    play(program, 2)


def test_a_bundle_whose_release_is_always_refused_is_given_up_and_available_once_writes_work_again() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        holder, other = sessions
        jobs, number = holder.queue("jobs"), 4
        await jobs.configure(zq.QueueConfig(bundle=number))
        await jobs.put_many([b""] * number)
        async with holder.transaction(autocommit=False) as tx:
            assert len(await tx.take_many(jobs, number, timeout=1)) == number
            refused: list[int] = []

            def refuses(each: int) -> bool:
                refused.append(each)
                return True

            refusing = Refusing(holder, -1, refuses)
            await tx.rollback(delay=0)
            await asyncio.sleep(1)
        assert len(refused) < 10
        refusing.stop()
        async with other.transaction() as tx:
            taken = await tx.take_many(other.queue("jobs"), number, timeout=10)
        assert len(taken) == number

    play(program, 2)


def refuse_the_slot(operations: Sequence[Operation]) -> Exception:
    return MultiError(0, NoAuthError(operations[0].path))


def refuse_each_message(operations: Sequence[Operation]) -> Exception:
    created = [index for index, operation in enumerate(operations) if isinstance(operation, Create)]
    index = created[0] if created else 0
    return MultiError(index, QuotaExceededError(operations[index].path))


@pytest.mark.parametrize("refusal", [-1, refuse_the_slot, refuse_each_message])
def test_messages_without_a_taker_are_returned_seldom_while_that_is_refused_and_soon_afterwards(
    refusal: Refusal, caplog: pytest.LogCaptureFixture
) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        holder, other = sessions
        jobs, number = holder.queue("jobs"), 4
        await jobs.configure(zq.QueueConfig(bundle=number))
        await jobs.put_many([b""] * number)
        async with holder.transaction() as tx:
            assert await tx.take(jobs, timeout=1)
            refused: list[int] = []

            def refuses(each: int) -> bool:
                refused.append(each)
                return True

            refusing = Refusing(holder, refusal, refuses)
            caplog.clear()
            await asyncio.sleep(120)
            refusing.stop()
            assert len(refused) < 60
            assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
            async with other.transaction() as neighbour:
                taken = await neighbour.take_many(other.queue("jobs"), number, timeout=10)
                assert len(taken) == number - 1

    play(program, 2)


@pytest.mark.parametrize("bundle", [1, 4], ids=["single items", "bundles"])
@pytest.mark.parametrize("code", [-1, THROTTLED])
def test_a_claim_whose_reply_is_lost_and_whose_repetition_is_refused_leaves_no_lock(bundle: int, code: int) -> None:
    async def main() -> None:
        async with simulated() as cluster, cluster.connect(name="taker") as session, cluster.connect() as other:
            jobs, number = session.queue("jobs"), 4
            await jobs.configure(zq.QueueConfig(bundle=bundle))
            await jobs.put_many([b""] * number)
            lost: list[Request] = []

            def judge(connection: ServerConnection, request: Request) -> Fault | None:
                creates = request.kind is Kind.MULTI and any(
                    isinstance(operation, Create) and "/locks/" in operation.path for operation in request.argument
                )
                if lost or not creates or connection.client.name != "taker":
                    return None
                lost.append(request)
                Refusing(session, code, lambda number: number == 1)
                return Fault.LOST_AFTER

            cluster.ensemble.judge = judge
            with suppress(zq.ConnectionLostError):
                async with session.transaction(autocommit=False) as tx:
                    await tx.take(jobs, timeout=2)
                    await tx.rollback(delay=0)
            assert lost
            await asyncio.sleep(10)
            async with other.transaction() as tx:
                assert len(await tx.take_many(other.queue("jobs"), number, timeout=10)) == number

    run_virtual(main)


@pytest.mark.parametrize(
    "queue_of",
    [
        lambda session: session.queue("jobs"),
        lambda session: session.curator_queue("/app/jobs", lock_path="/app/locks"),
        lambda session: session.kazoo_queue("/app/jobs", locking=False),
    ],
    ids=["own", "Curator's", "kazoo's without locks"],
)
def test_a_lock_that_cannot_be_read_after_a_lost_reply_is_removed_once_reads_work_again(
    queue_of: Callable[[zq.QueueSession], zq.Queue[bytes]],
) -> None:
    async def main() -> None:
        async with simulated() as cluster, cluster.connect(name="taker") as session, cluster.connect() as other:
            jobs = queue_of(session)
            await jobs.put_many([b"1", b"2"])
            async with session.transaction() as tx:
                assert await tx.take(jobs, timeout=5)
            zookeeper: Any = core_of(session).zookeeper  # its methods are replaced
            lost: list[str] = []
            refused: list[str] = []

            def judge(connection: ServerConnection, request: Request) -> Fault | None:
                if lost or request.kind is not Kind.MULTI or connection.client.name != "taker":
                    return None
                lost.extend(operation.path for operation in request.argument if isinstance(operation, Create))
                return Fault.LOST_AFTER if lost else None

            def failing(read: Any) -> Any:  # Any: a method of the client
                async def refusing(paths: Sequence[str], **options: Any) -> Any:  # passes all options on
                    if lost and lost[0] in paths:
                        refused.append(lost[0])
                        raise error_of(-1)
                    return await read(paths, **options)

                return refusing

            methods = zookeeper.read_many, zookeeper.read_versioned
            zookeeper.read_many, zookeeper.read_versioned = map(failing, methods)
            cluster.ensemble.judge = judge
            with suppress(zq.ConnectionLostError):
                async with session.transaction() as tx:
                    await tx.take(jobs, timeout=20)
            await asyncio.sleep(20)
            assert 2 < len(refused) < 10
            zookeeper.read_many, zookeeper.read_versioned = methods
            async with other.transaction() as tx:
                message = await tx.take(queue_of(other), timeout=120)
                assert message is not None
                assert message.body == b"2"

    run_virtual(main)


@pytest.mark.parametrize("code", [-1, -102], ids=["undocumented", "an ACL"])
def test_the_lock_of_a_group_that_was_lost_is_removed_once_it_can_be_read_again(code: int) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        holder, other = sessions
        jobs, operator = holder.queue("jobs"), core_of(other).zookeeper
        await jobs.configure(zq.QueueConfig(ordered=True))
        await jobs.put(b"1")
        zookeeper: Any = core_of(holder).zookeeper  # its methods are replaced
        read, refused = zookeeper.read_many, list[str]()

        async def refusing(paths: Sequence[str], **options: Any) -> Any:  # passes all options on
            if not any("/jobs/locks/" in path for path in paths):
                return await read(paths, **options)
            refused.extend(paths)
            raise error_of(code)

        async with holder.transaction(autocommit=False) as tx:
            assert await tx.take(jobs, timeout=5)
            (item,) = await operator.children("/zms/jobs/items")
            await operator.multi([Delete(f"/zms/jobs/items/{item}")])
            zookeeper.read_many = refusing
            await tx.rollback(delay=0)
        await asyncio.sleep(5)
        assert refused
        zookeeper.read_many = read
        await asyncio.sleep(120)
        assert await operator.children("/zms/jobs/locks") == []

    play(program, 2)


@pytest.mark.parametrize("error", [error_of(-77), NoAuthError(), QuotaExceededError()], ids=["code", "ACL", "quota"])
@pytest.mark.parametrize(
    ("queue_of", "items", "locks"),
    [
        (lambda session: session.queue("jobs"), "/zms/jobs/items", "/zms/jobs/locks"),
        (lambda session: session.curator_queue("/app/jobs", lock_path="/app/locks"), "/app/jobs", "/app/locks"),
        (lambda session: session.queue("groups"), "/zms/groups/items", "/zms/groups/locks"),
    ],
    ids=["single items", "Curator's", "groups"],
)
@pytest.mark.parametrize("refuses", ["the slot", "the removal"])
def test_the_lock_of_a_message_that_is_gone_is_removed_once_the_session_can_write(
    queue_of: Callable[[zq.QueueSession], zq.Queue[bytes]], items: str, locks: str, error: ZooKeeperError, refuses: str
) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        session, other = sessions
        jobs, zookeeper = queue_of(other), core_of(other).zookeeper
        if not isinstance(jobs, zq.CuratorQueue):
            await jobs.configure(zq.QueueConfig(bundle=1))
        for number in range(3):
            await jobs.put(b"%d" % number, group=str(number) if jobs.name == "groups" else None)
        async with session.transaction(autocommit=False) as tx:
            assert await tx.take(queue_of(session), timeout=5)
            (_, second, _) = sorted(await zookeeper.children(items), key=lambda name: name[-10:])
            client: Any = core_of(session).zookeeper  # its methods are replaced
            multi, read, refused = client.multi, client.read_versioned, list[str]()

            async def hiding(paths: Sequence[str], **options: Any) -> Any:  # passes all options on
                nodes = await read(paths, **options)
                return [None if path == f"{items}/{second}" else node for path, node in zip(paths, nodes, strict=True)]

            def checked(operations: Sequence[Operation], **options: Any) -> Any:  # passes all options on
                for index, operation in enumerate(operations):
                    removes = isinstance(operation, Delete) and operation.path.startswith(f"{locks}/")
                    if removes if refuses == "the removal" else operation.path.startswith("/zms/.clients/"):
                        refused.append(operation.path)
                        return asyncio.ensure_future(refusal(index))
                return multi(operations, **options)

            async def refusal(index: int) -> None:
                await asyncio.sleep(0.01)
                raise MultiError(index, error)

            client.multi, client.read_versioned = checked, hiding
            assert await tx.take(queue_of(session), timeout=5)
            client.read_versioned = read
            await asyncio.sleep(30)
            assert 0 < len(refused) < 20
            assert len(await zookeeper.children(locks)) == 3
            client.multi = multi
            async with other.transaction() as neighbour:
                message = await neighbour.take(jobs, timeout=120)
                assert message is not None
                assert message.body == b"1"
            await tx.rollback()

    play(program, 2)


@pytest.mark.parametrize("settings", [zq.QueueConfig(bundle=1), zq.QueueConfig(bundle=4), zq.QueueConfig(ordered=True)])
@pytest.mark.parametrize("refusal", [-1, refuse_the_slot, refuse_each_message])
def test_messages_whose_release_was_refused_are_available_soon_after_writes_work_again(
    refusal: Refusal, settings: zq.QueueConfig
) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        holder, other = sessions
        jobs, number = holder.queue("jobs"), 4
        await jobs.configure(settings)
        for _ in range(number):
            await jobs.put(b"")
        async with holder.transaction(autocommit=False) as tx:
            assert await tx.take_many(jobs, number, timeout=1)
            refusing = Refusing(holder, refusal, lambda _: True)
            await tx.rollback(delay=0)
            await asyncio.sleep(30)
        refusing.stop()
        taken = 0
        async with asyncio.timeout(120):
            while taken < number:
                async with other.transaction() as tx:
                    taken += len(await tx.take_many(other.queue("jobs"), number, timeout=100))

    play(program, 2)


def test_the_lock_of_a_message_that_is_gone_is_removed_once_writes_work_again() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        session, other = sessions
        jobs, zookeeper = session.queue("jobs"), core_of(other).zookeeper
        await jobs.configure(zq.QueueConfig(bundle=1))
        await jobs.put_many([b"1", b"2", b"3"])
        async with session.transaction() as tx:
            assert await tx.take(jobs, timeout=5)
        (second, _) = sorted(await zookeeper.children("/zms/jobs/items"))
        await zookeeper.multi([Delete(f"/zms/jobs/items/{second}")])
        refusing = Refusing(session, -1, lambda number: number > 1)
        async with session.transaction(autocommit=False) as tx:
            with suppress(zq.ConnectionLostError):
                await tx.take(jobs, timeout=1)
            await asyncio.sleep(30)
            assert len(await zookeeper.children("/zms/jobs/locks")) == 1
            refusing.stop()
            await tx.rollback(delay=0)
        await asyncio.sleep(60)
        assert await zookeeper.children("/zms/jobs/locks") == []

    play(program, 2)


@pytest.mark.parametrize("settings", [zq.QueueConfig(bundle=1), zq.QueueConfig(bundle=4), zq.QueueConfig(ordered=True)])
@pytest.mark.parametrize("fault", [Fault.LOST_BEFORE, Fault.LOST_AFTER])
def test_messages_of_a_commit_that_stays_unknown_are_available_soon_after_writes_work_again(
    fault: Fault, settings: zq.QueueConfig
) -> None:
    async def main() -> None:
        async with simulated() as cluster, cluster.connect(name="holder") as session, cluster.connect() as other:
            jobs, number = session.queue("jobs"), 4
            await jobs.configure(settings)
            await jobs.put_many([b""] * number)
            refusing: list[Refusing] = []

            def judge(connection: ServerConnection, request: Request) -> Fault | None:
                ends = request.kind is Kind.MULTI and any(
                    isinstance(operation, Delete) and "/lock-" in operation.path for operation in request.argument
                )
                if refusing or not ends or connection.client.name != "holder":
                    return None
                refusing.append(Refusing(session, -1, lambda _: True))
                return fault

            async with session.transaction(autocommit=False) as tx:
                assert len(await tx.take_many(jobs, number, timeout=1)) == number
                cluster.ensemble.judge = judge
                with pytest.raises(zq.OutcomeUnknownError):
                    await tx.commit()
            assert tx.outcome is zq.Outcome.UNKNOWN
            refusing[0].stop()
            taken = 0
            with suppress(TimeoutError):
                async with asyncio.timeout(120):
                    while taken < number:
                        async with other.transaction() as tx:
                            taken += len(await tx.take_many(other.queue("jobs"), number, timeout=None))
            assert taken == (0 if fault is Fault.LOST_AFTER else number)

    run_virtual(main)


@pytest.mark.parametrize("fault", [Fault.LOST_BEFORE, Fault.LOST_AFTER])
def test_messages_without_a_taker_whose_return_stays_unknown_are_available_soon_after_writes_work_again(
    fault: Fault,
) -> None:
    async def main() -> None:
        async with simulated() as cluster, cluster.connect(name="holder") as session, cluster.connect() as other:
            jobs, number = session.queue("jobs"), 4
            await jobs.configure(zq.QueueConfig(bundle=number))
            await jobs.put_many([b""] * number)
            refusing: list[Refusing] = []

            def judge(connection: ServerConnection, request: Request) -> Fault | None:
                returns = request.kind is Kind.MULTI and any(
                    isinstance(operation, Create) and "/items/item-" in operation.path for operation in request.argument
                )
                if refusing or not returns or connection.client.name != "holder":
                    return None
                refusing.append(Refusing(session, -1, lambda _: True))
                return fault

            cluster.ensemble.judge = judge
            async with session.transaction(autocommit=False) as tx:
                assert await tx.take(jobs, timeout=1)
                await asyncio.sleep(1)
                refusing[0].stop()
                async with other.transaction() as neighbour:
                    taken = 0
                    with suppress(TimeoutError):
                        async with asyncio.timeout(60):
                            while taken < number:  # the session gives the whole bundle up
                                taken += len(await neighbour.take_many(other.queue("jobs"), number, timeout=None))
                    assert taken == number
                await tx.rollback()

    run_virtual(main)


@pytest.mark.parametrize("path", ["/zms/jobs/cancelled", "/zms/.rates/jobs"])
def test_a_listener_whose_own_reads_are_refused_ends_with_a_typed_error_after_its_handlers(path: str) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, session = sessions
        jobs, finished = operator.queue("jobs"), list[bytes]()
        begun = asyncio.Event()

        async def handler(delivery: zq.Delivery[bytes]) -> None:
            begun.set()
            await asyncio.sleep(5)
            finished.append(delivery.body)

        listener = session.listener(session.queue("jobs"), handler, concurrency=2, rate=1000)
        running = asyncio.create_task(listener.run())
        await jobs.put(b"1")
        await begun.wait()
        refuse_reads(session, path, -1)
        await jobs.put(b"2")
        await jobs.cancel(id=await jobs.put(b"3", delay=60), running=True)
        with pytest.raises(zq.ConnectionLostError, match="SYSTEMERROR"):
            await running
        assert b"1" in finished

    play(program, 2)


def test_a_handler_is_cancelled_with_its_message_after_a_busy_server_has_dropped_a_read() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, session = sessions
        jobs, begun, cancelled = operator.queue("jobs"), asyncio.Event(), asyncio.Event()

        async def handler(_: zq.Delivery[bytes]) -> None:
            begun.set()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                cancelled.set()
                raise

        async with session.listener(session.queue("jobs"), handler):
            message_id = await jobs.put(b"1")
            await begun.wait()
            refuse_reads(session, "/zms/jobs/cancelled", THROTTLED, times=5)
            assert await jobs.cancel(id=message_id, running=True)
            async with asyncio.timeout(600):
                await cancelled.wait()

    play(program, 2)


def refuse_reads(session: zq.QueueSession, path: str, code: int, times: int | None = None) -> None:
    """Refuse the reads of one znode with an error code, as many times as given (None: always)."""
    zookeeper: Any = core_of(session).zookeeper  # its methods are replaced
    read, refused = zookeeper.read, list[str]()

    async def refusing(read_path: str, **options: Any) -> Any:  # passes all options on
        if read_path != path or (times is not None and len(refused) >= times):
            return await read(read_path, **options)
        refused.append(read_path)
        await asyncio.sleep(0.01)
        raise error_of(code)

    zookeeper.read = refusing


@pytest.mark.parametrize("error", [ProtocolError("nonsense"), ConnectionLossError("nonsense")], ids=repr)
def test_a_put_that_an_inconsistent_server_prevents_is_not_committed_and_its_session_stays_open(
    error: Exception,
) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        (session,) = sessions
        zookeeper: Any = core_of(session).zookeeper  # its methods are replaced
        ensure = zookeeper.ensure

        async def inconsistent(path: str) -> None:
            if path.endswith("/.clients"):  # where each client has its commit slots
                raise error
            await ensure(path)

        zookeeper.ensure = inconsistent
        with pytest.raises(zq.NotCommittedError, match="nothing was applied"):
            await session.queue("jobs").put(b"1")
        zookeeper.ensure = ensure
        await session.queue("jobs").put(b"2")
        assert [message.body for message in await session.queue("jobs").peek()] == [b"2"]

    play(program, 1)
