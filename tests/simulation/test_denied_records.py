"""Messages of bundles whose attempts or dead letters a user may not write, because of an ACL or an enforced quota."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.session.internals import core_of
from aiozkqueue.zookeeper import Create, MultiError, NoAuthError, SetData
from aiozkqueue.zookeeper.wire import error_of
from tests.simulation.test_known_configuration import play

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiozkqueue.zookeeper import Operation

NUMBER = 40
SYSTEM_ERROR = -1


def to_record(operation: Operation) -> bool:
    return isinstance(operation, SetData) and "/meta/bundle-" in operation.path


def to_attempts(operation: Operation) -> bool:
    return isinstance(operation, Create) and "/meta/meta-" in operation.path


def to_dead_letter(operation: Operation) -> bool:
    return isinstance(operation, Create) and "/dlq/" in operation.path


def to_lock(operation: Operation) -> bool:
    return isinstance(operation, Create) and "/locks/" in operation.path


def to_due_node(operation: Operation) -> bool:
    return isinstance(operation, Create) and "/due/" in operation.path


def to_new_items(operation: Operation) -> bool:
    return isinstance(operation, Create) and ("/dlq/" in operation.path or "/items/item-" in operation.path)


class Denied:
    """Refuses some writes of a session: by an ACL, or by an error code for each whole request."""

    def __init__(
        self, session: zq.QueueSession, where: Callable[[Operation], bool] = to_record, code: int | None = None
    ) -> None:
        self._where = where
        self._code = code
        zookeeper: Any = core_of(session).zookeeper  # Any: its methods are replaced
        self._multi = zookeeper.multi
        self.refused = 0
        zookeeper.multi = self._checked

    def lift(self) -> None:
        """Refuse nothing from now on."""
        self._where = lambda _: False

    def _checked(self, operations: Sequence[Operation], **options: Any) -> Any:  # passes all options on
        for index, operation in enumerate(operations):
            if self._where(operation):
                self.refused += 1
                refused = asyncio.get_running_loop().create_future()
                denied = MultiError(index, NoAuthError(operation.path))
                refused.set_exception(denied if self._code is None else error_of(self._code))
                return refused
        return self._multi(operations, **options)


async def prepare(session: zq.QueueSession) -> zq.Queue[bytes]:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(bundle=64, policy=zq.ConsumeTimes(3)))
    await jobs.put_many([b"%d" % number for number in range(NUMBER)])
    return jobs


@pytest.mark.parametrize("limit", [1, 7])
def test_consumers_that_may_write_the_record_get_the_bundle_of_one_that_may_not(limit: int) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, denied, consumer = sessions
        jobs, refusals = await prepare(operator), Denied(denied)

        async def take() -> None:
            async with denied.transaction() as tx:
                assert await tx.take_many(denied.queue("jobs"), limit, timeout=400) == []

        taking = asyncio.create_task(take())
        await asyncio.sleep(1)
        async with consumer.transaction() as tx:
            taken = await tx.take_many(consumer.queue("jobs"), NUMBER, timeout=5)
            assert [message.attempt for message in taken] == [1] * NUMBER
        await taking
        assert await jobs.size() == 0
        assert refusals.refused <= 2 * limit

    play(program)


def test_a_bundle_whose_record_can_no_longer_be_written_is_tried_again_each_minute() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, consumer = sessions
        await prepare(operator)
        async with consumer.transaction(autocommit=False) as held:
            assert await held.take(consumer.queue("jobs"), timeout=5)
            refusals = Denied(consumer)
            async with consumer.transaction() as tx:
                assert await tx.take(consumer.queue("jobs"), timeout=200) is None
            assert 2 <= refusals.refused <= 5
            await held.rollback()

    play(program, 2, limit=10_000)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_single_message_whose_attempts_cannot_be_counted_is_tried_again_every_five_minutes(*, ordered: bool) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, consumer = sessions
        jobs = operator.queue("jobs")
        await jobs.configure(zq.QueueConfig(bundle=1, ordered=ordered, policy=zq.ConsumeTimes(3)))
        await jobs.put(b"1")
        refusals = Denied(consumer, to_attempts)
        for patience, tries in ((10, 1), (1000, 4)):
            async with consumer.transaction() as tx:
                assert await tx.take(consumer.queue("jobs"), timeout=patience) is None
            assert refusals.refused == tries
        async with operator.transaction() as tx:
            message = await tx.take(jobs, timeout=5)
            assert message is not None
            assert message.attempt == 1

    play(program, 2, limit=10_000)


def test_a_message_that_cannot_become_a_dead_letter_keeps_its_attempts() -> None:
    """The message is stored as a single item, without a delivery."""

    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, consumer = sessions
        await prepare(operator)
        async with consumer.transaction() as tx:
            message = await tx.take(consumer.queue("jobs"), timeout=5)
            assert message is not None
            await tx.rollback(delay=0)
        refusals = Denied(consumer, to_dead_letter)
        async with consumer.transaction() as tx:
            assert await tx.take(consumer.queue("jobs", dict[str, int]), timeout=2) is None
        assert refusals.refused >= NUMBER
        attempts = dict[str, int]()
        while len(attempts) < NUMBER:
            async with consumer.transaction() as tx:
                for taken in await tx.take_many(consumer.queue("jobs"), NUMBER, timeout=4000):
                    attempts[taken.id] = taken.attempt
        assert attempts.pop(message.id) == 2
        assert set(attempts.values()) == {1}

    play(program, 2, limit=10_000)


@pytest.mark.parametrize("bundle", [1, 64])
def test_a_message_without_attempts_left_is_not_delivered_again_while_it_cannot_become_a_dead_letter(
    bundle: int,
) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, consumer = sessions
        jobs, shown = operator.queue("jobs"), list[int]()
        policy = zq.ConsumeTimes(2, backoff=zq.Fixed(0))
        await jobs.configure(zq.QueueConfig(bundle=bundle, policy=policy))
        await jobs.put_many([b"%d" % number for number in range(NUMBER)])

        async def handle(delivery: zq.Delivery[bytes]) -> None:
            if delivery.body == b"2":
                shown.append(delivery.attempt)
                await asyncio.sleep(5 * (delivery.attempt - 1))
                raise KeyError

        async with consumer.listener(consumer.queue("jobs"), handle, concurrency=8):
            await asyncio.sleep(1)
            refusals = Denied(consumer, to_new_items)
            await asyncio.sleep(400)
            assert shown == [1, 2]
            assert refusals.refused
            refusals.lift()
            await asyncio.sleep(4000)
        assert shown == [1, 2]
        assert (await jobs.stats()).dead_letters == 1

    play(program, 2, limit=10_000)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("bundle", [1, 64])
def test_a_listener_whose_user_may_not_lock_messages_ends_with_that_error(bundle: int) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, consumer = sessions
        jobs = operator.queue("jobs")
        await jobs.configure(zq.QueueConfig(bundle=bundle))
        await jobs.put_many([b"1", b"2"])

        async def handle(_: zq.Delivery[bytes]) -> None:
            raise AssertionError

        Denied(consumer, to_lock)
        with pytest.raises(zq.AccessDeniedError):
            await consumer.listener(consumer.queue("jobs"), handle).run()

    play(program, 2)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("bundle", [1, 64])
@pytest.mark.parametrize("number", [4, 400])
def test_attempts_whose_records_a_server_refuses_are_tried_again_after_pauses(
    bundle: int, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, consumer = sessions
        jobs, handled = operator.queue("jobs"), list[bytes]()
        await jobs.configure(zq.QueueConfig(bundle=bundle, policy=zq.ConsumeTimes(3)))
        await jobs.put_many([b"%d" % each for each in range(number)])

        async def handle(delivery: zq.Delivery[bytes]) -> None:
            handled.append(delivery.body)
            assert delivery.attempt == 1

        refusals = Denied(consumer, lambda operation: to_record(operation) or to_attempts(operation), SYSTEM_ERROR)
        async with consumer.listener(consumer.queue("jobs"), handle, concurrency=4):
            await asyncio.sleep(120)
            assert not handled
            assert 0 < refusals.refused < 240
            assert 0 < len(caplog.records) <= 3
            kept = [record.message for record in caplog.records if " is kept for " in record.message]
            assert [" more attempts were refused" in message for message in kept] == [False, True]
            refusals.lift()
            await asyncio.sleep(60)
        assert len(handled) == len(set(handled)) == number

    play(program, 2)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("code", [None, SYSTEM_ERROR])
def test_the_messages_of_a_group_wait_for_a_retry_whose_timed_lock_is_refused(
    *, ordered: bool, code: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, consumer = sessions
        jobs, shown, failures = operator.queue("jobs"), list[bytes](), 6
        await jobs.configure(zq.QueueConfig(ordered=ordered, policy=zq.AtLeastOnce(backoff=zq.Fixed(20))))
        for body in (b"1", b"2"):
            await jobs.put(body, group=None if ordered else "g")

        async def handle(delivery: zq.Delivery[bytes]) -> None:
            shown.append(delivery.body)
            if len(shown) <= failures:
                raise KeyError

        refusals = Denied(consumer, to_due_node, code)
        async with consumer.listener(consumer.queue("jobs"), handle, concurrency=4):
            await asyncio.sleep(110)
            assert refusals.refused
            assert shown == [b"1"] * failures
            assert len(caplog.records) < 30
            refusals.lift()
            await asyncio.sleep(60)
        assert shown == [*[b"1"] * failures, b"1", b"2"]

    play(program, 2)
