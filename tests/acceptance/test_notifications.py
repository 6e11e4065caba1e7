"""Notification queues: events with a date are found, replaced and removed by their keys while they wait."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any

import pytest
from kazoo.security import make_acl
from pydantic import BaseModel

import aiozkqueue as zq
from aiozkqueue.errors import AlreadyExistsError, ItemNotEmptyError, NotFoundError
from aiozkqueue.operations.alter import settled
from aiozkqueue.schedule import Notification, NotificationQueue, Notifications, notifications
from aiozkqueue.session.internals import core_of, handle_of
from aiozkqueue.zookeeper import Create
from tests.integration.queue.conftest import eventually
from tests.simulation.between import Between

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.testing import TestClock
    from tests.acceptance.conftest import OnClock
    from tests.observer import Observer


class Invoice(BaseModel):
    account: int


@pytest.fixture
async def invoices(session: zq.QueueSession) -> NotificationQueue[Invoice]:
    return await Notifications(session).create("billing", "invoices", Invoice)


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_refused_creation_leaves_no_queue(
    session: zq.QueueSession, server_view: Observer, queue_root: str, *, deleted: bool
) -> None:
    await Notifications(session).create("billing", "others", Invoice)
    if deleted:
        made = await Notifications(session).create("billing", "invoices", Invoice)
        await made.queue.admin.delete()
    await server_view.set_acl(f"{queue_root}/.notifications", [make_acl("world", "anyone", read=True, admin=True)])
    with pytest.raises(zq.AccessDeniedError, match=f"{queue_root}/.notifications"):
        await Notifications(session).create("billing", "invoices", Invoice)
    assert await session.queues() == ["billing:others"]
    await server_view.set_acl(f"{queue_root}/.notifications", [make_acl("world", "anyone", all=True)])
    made = await Notifications(session).create("billing", "invoices", Invoice)
    await made.schedule(Invoice(account=1), later(3600))
    assert [found.event for found in await made.find()] == [Invoice(account=1)]
    assert (await made.queue.configuration()).history is not None
    with pytest.raises(AlreadyExistsError):
        await Notifications(session).create("billing", "invoices", Invoice)


def later(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


class Handler:
    def __init__(self, fails: int = 0) -> None:
        self.handled: list[Notification[Invoice]] = []
        self.at: list[datetime] = []
        self._fails = fails

    async def __call__(self, notification: Notification[Invoice]) -> None:
        self.handled.append(notification)
        self.at.append(datetime.now(UTC))
        if len(self.handled) <= self._fails:
            raise OSError("the mail server is down")

    async def called(self, count: int) -> None:
        async with asyncio.timeout(40):
            while len(self.handled) < count:  # noqa: ASYNC110 -- no event reports it
                await asyncio.sleep(0.01)


async def test_a_handler_gets_an_event_with_its_date_token_and_keys_when_it_is_due(
    invoices: NotificationQueue[Invoice],
) -> None:
    date = later(1.5)
    message_id = await invoices.schedule(
        Invoice(account=7), date, search_key1="7", search_key2="tenant", user_token="tok"
    )
    handler = Handler()
    async with invoices.listener(handler):
        await handler.called(1)
    [entry] = handler.handled
    assert (entry.id, entry.event, entry.effective_date) == (message_id, Invoice(account=7), date)
    assert (entry.search_key1, entry.search_key2, entry.user_token, entry.attempt) == ("7", "tenant", "tok", 1)
    assert handler.at[0] >= date - timedelta(milliseconds=50), "clocks of two programs may differ by that"
    [record] = [record async for record in invoices.queue.history()]
    assert (record.outcome.value, record.payload, record.attempts) == ("finished", b'{"account":7}', 1)
    assert sorted(record.headers.values()) == sorted(["7", "tenant", "tok", date.isoformat()])


async def test_another_session_finds_the_entries_of_a_queue_without_a_listener(
    invoices: NotificationQueue[Invoice], other: zq.QueueSession
) -> None:
    await invoices.schedule(Invoice(account=1), later(3600), search_key2="t")
    await invoices.schedule(Invoice(account=2), later(-3600), search_key2="t")
    found = await (await Notifications(other).get("billing", "invoices", Invoice)).find("t")
    assert [entry.event.account for entry in found] == [2, 1]


async def test_entries_are_found_by_both_keys_by_the_second_key_and_up_to_a_date(
    invoices: NotificationQueue[Invoice],
) -> None:
    for account, (key1, key2, hours) in enumerate([("a", "t", 1), ("b", "t", 2), ("a", "u", 1), ("a", "t", 72)]):
        await invoices.schedule(Invoice(account=account), later(hours * 3600), search_key1=key1, search_key2=key2)
    await invoices.schedule(Invoice(account=9), later(60))

    async def accounts(*keys: str, **options: Any) -> list[int]:
        return [entry.event.account for entry in await invoices.find(*keys, **options)]

    assert await accounts("t") == [0, 1, 3]
    assert await accounts("t", search_key1="a") == [0, 3]
    assert await accounts("t", until=later(3 * 3600)) == [0, 1]
    assert await accounts("nobody") == []
    assert await accounts() == [9, 0, 2, 1, 3]
    assert await accounts("t", status="in processing") == []


async def test_a_leased_entry_is_shown_as_being_handled_and_cannot_be_replaced_or_removed(
    on_clock: OnClock, clock: TestClock
) -> None:
    session = await on_clock()
    invoices = await Notifications(session).create("billing", "invoices", Invoice)
    message_id = await invoices.schedule(Invoice(account=1), later(-1), search_key2="t")
    [lease] = await invoices.queue.leases.take(lifetime=600, timeout=30)
    assert lease.id == message_id
    assert await invoices.update(message_id, Invoice(account=2)) is False
    assert await invoices.remove(message_id) is False
    assert await invoices.remove_all("t") == 0
    async with session.transaction() as tx:
        assert await invoices.remove(message_id, tx=tx) is False
    assert [entry.status for entry in await invoices.find("t")] == ["in processing"]
    assert await invoices.ready() == 0
    clock.advance(600)
    assert [entry.status for entry in await invoices.find("t")] == ["future"]
    assert await invoices.update(message_id, Invoice(account=3)) is True
    assert await invoices.remove(message_id) is True
    assert await invoices.queue.size() == 0


async def test_an_entry_in_flight_is_shown_as_such_and_cannot_be_replaced_or_removed(
    invoices: NotificationQueue[Invoice],
) -> None:
    started, done = asyncio.Event(), asyncio.Event()

    async def slow(_: Notification[Invoice]) -> None:
        started.set()
        await done.wait()

    message_id = await invoices.schedule(Invoice(account=1), later(0), search_key2="t")
    await invoices.schedule(Invoice(account=2), later(3600), search_key2="t")
    async with invoices.listener(slow):
        await started.wait()
        found = {entry.event.account: entry.status for entry in await invoices.find("t")}
        assert found == {1: "in processing", 2: "future"}
        assert not await invoices.update(message_id, Invoice(account=5))
        assert not await invoices.remove(message_id)
        assert await invoices.remove_all("t") == 1
        done.set()


async def test_an_event_can_be_replaced_while_it_waits(invoices: NotificationQueue[Invoice]) -> None:
    date = later(1)
    message_id = await invoices.schedule(Invoice(account=1), date, search_key2="t", user_token="tok")
    assert await invoices.update(message_id, Invoice(account=2))
    handler = Handler()
    async with invoices.listener(handler):
        await handler.called(1)
    [entry] = handler.handled
    assert (entry.id, entry.event.account, entry.effective_date, entry.user_token) == (message_id, 2, date, "tok")
    assert not await invoices.update(message_id, Invoice(account=3)), "it is gone"


async def test_an_update_with_other_keys_than_those_of_the_notification_changes_nothing(
    session: zq.QueueSession, invoices: NotificationQueue[Invoice]
) -> None:
    keyed = await invoices.schedule(Invoice(account=1), later(3600), search_key1="1", search_key2="t")
    plain = await invoices.schedule(Invoice(account=1), later(3600))

    async def accounts() -> list[int]:
        return [entry.event.account for entry in await invoices.find()]

    for wrong in ((None, "u"), ("2", "t"), ("t", "1")):
        assert not await invoices.update(keyed, Invoice(account=2), search_key1=wrong[0], search_key2=wrong[1])
    assert not await invoices.update(plain, Invoice(account=2), search_key2="t")
    async with session.transaction() as tx:
        assert not await invoices.update(keyed, Invoice(account=2), search_key2="u", tx=tx)
    assert await accounts() == [1, 1]
    with pytest.raises(zq.InvalidOptionError, match="search_key2"):
        await invoices.update(keyed, Invoice(account=2), search_key1="1")
    with pytest.raises(zq.InvalidOptionError, match="give a str"):
        await invoices.update(keyed, Invoice(account=2), search_key2=1)  # type: ignore[arg-type]
    assert await invoices.update(keyed, Invoice(account=3), search_key2="t")
    assert [entry.event.account for entry in await invoices.find("t", search_key1="1")] == [3]
    async with session.transaction() as tx:
        assert await invoices.update(keyed, Invoice(account=4), search_key1="1", search_key2="t", tx=tx)
    assert [entry.event.account for entry in await invoices.find("t", search_key1="1")] == [4]
    assert await invoices.update(plain, Invoice(account=5)), "no keys given, none are checked"


async def test_one_entry_or_all_entries_of_a_key_are_removed_and_recorded(invoices: NotificationQueue[Invoice]) -> None:
    ids = [
        await invoices.schedule(Invoice(account=n), later(3600), search_key1=str(n % 2), search_key2="t")
        for n in range(5)
    ]
    kept = await invoices.schedule(Invoice(account=9), later(3600), search_key2="u")
    assert await invoices.remove(ids[0])
    assert not await invoices.remove(ids[0])
    assert await invoices.remove_all("t", search_key1="1") == 2
    assert await invoices.remove_all("t") == 2
    assert [entry.id for entry in await invoices.find()] == [kept]
    assert [record.outcome.value async for record in invoices.queue.history()] == ["removed"] * 5


async def test_entries_that_two_clients_remove_at_once_are_counted_once_and_not_reported_as_faults(
    invoices: NotificationQueue[Invoice],
    other: zq.QueueSession,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for account in range(60):
        await invoices.schedule(Invoice(account=account), later(3600), search_key1=str(account % 2), search_key2="t")
    same = await Notifications(other).get("billing", "invoices", Invoice)
    removed: list[int] = []

    async def overtaken(*change: Any) -> set[str]:
        monkeypatch.setattr(notifications, "settled", settled)
        removed.append(await same.remove_all("t", search_key1="1"))
        return await settled(*change)

    monkeypatch.setattr(notifications, "settled", overtaken)
    assert (await invoices.remove_all("t"), removed) == (30, [30])
    assert await invoices.find("t") == []
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("change", ["update", "remove", "remove_all"])
async def test_an_entry_that_another_client_updates_at_once_is_changed_nevertheless(
    invoices: NotificationQueue[Invoice], other: zq.QueueSession, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    ids = [await invoices.schedule(Invoice(account=account), later(3600), search_key2="t") for account in range(2)]
    same = await Notifications(other).get("billing", "invoices", Invoice)

    async def overtaken(*change: Any) -> set[str]:
        monkeypatch.setattr(notifications, "settled", settled)
        assert await same.update(ids[0], Invoice(account=7))
        return await settled(*change)

    monkeypatch.setattr(notifications, "settled", overtaken)
    changed: dict[str, Callable[[], Awaitable[int]]] = {
        "update": lambda: invoices.update(ids[0], Invoice(account=8)),
        "remove": lambda: invoices.remove(ids[0]),
        "remove_all": lambda: invoices.remove_all("t"),
    }
    left = {"update": [1, 8], "remove": [1], "remove_all": []}
    assert await changed[change]() == (2 if change == "remove_all" else True)
    assert sorted(entry.event.account for entry in await invoices.find("t")) == left[change]


async def test_an_entry_that_cannot_be_removed_is_named_and_the_others_are_removed(
    invoices: NotificationQueue[Invoice], session: zq.QueueSession
) -> None:
    ids = [await invoices.schedule(Invoice(account=account), later(3600), search_key2="t") for account in range(3)]
    [snapshot] = await invoices._by_id(ids[1])
    path = handle_of(invoices.queue).paths.at(snapshot.place)
    await core_of(session).zookeeper.multi([Create(f"{path}/of-another-program")])
    with pytest.raises(ItemNotEmptyError, match=rf"{ids[1]} of queue 'billing:invoices'.*znodes below it"):
        await invoices.remove_all("t")
    assert [entry.id for entry in await invoices.find("t")] == [ids[1]]
    with pytest.raises(ItemNotEmptyError, match=ids[1]):
        await invoices.remove(ids[1])


async def test_entries_are_replaced_and_removed_only_if_the_transaction_commits(
    invoices: NotificationQueue[Invoice], session: zq.QueueSession
) -> None:
    ids = [await invoices.schedule(Invoice(account=number), later(60), search_key2="t") for number in range(3)]

    async def accounts() -> list[int]:
        return sorted(entry.event.account for entry in await invoices.find("t"))

    async with session.transaction(autocommit=False) as tx:
        assert await invoices.remove_all("t", tx=tx) == 3
        await tx.rollback()
    assert await accounts() == [0, 1, 2]
    async with session.transaction() as tx:
        assert await invoices.update(ids[0], Invoice(account=10), tx=tx)
        assert await invoices.remove(ids[1], tx=tx)
        assert await invoices.remove_all("t", tx=tx) == 2, "but for the one that it removes already"
        await invoices.schedule(Invoice(account=7), later(60), search_key2="t", tx=tx)
    assert await accounts() == [7]


async def test_a_session_that_has_only_created_the_queue_changes_the_entries_of_another_in_a_transaction(
    zookeeper: str, queue_root: str, invoices: NotificationQueue[Invoice], session: zq.QueueSession
) -> None:
    async with zq.connect(zookeeper, root=queue_root) as other:
        theirs = await Notifications(other).get("billing", "invoices", Invoice)
        ids = [await theirs.schedule(Invoice(account=number), later(60)) for number in range(2)]
        async with session.transaction() as tx:
            assert await invoices.update(ids[0], Invoice(account=10), tx=tx)
            assert await invoices.remove(ids[1], tx=tx)
        assert [entry.event.account for entry in await theirs.find()] == [10]


async def test_an_entry_is_scheduled_only_if_its_transaction_commits(
    session: zq.QueueSession, invoices: NotificationQueue[Invoice]
) -> None:
    async with session.transaction() as tx:
        await invoices.schedule(Invoice(account=1), later(3600), search_key2="t", tx=tx)
        tx.put("orders", b"1")
    with pytest.raises(OSError, match="no"):
        async with session.transaction() as tx:
            await invoices.schedule(Invoice(account=2), later(3600), search_key2="t", tx=tx)
            raise OSError("no")
    assert [entry.event.account for entry in await invoices.find("t")] == [1]


async def test_a_handler_schedules_the_next_entry_in_the_commit_of_this_one(
    invoices: NotificationQueue[Invoice],
) -> None:
    handler = Handler()

    async def again(notification: Notification[Invoice]) -> None:
        if notification.event.account < 3:
            following = Invoice(account=notification.event.account + 1)
            await invoices.schedule(following, later(0.2), tx=notification.delivery)
        await handler(notification)

    await invoices.schedule(Invoice(account=1), later(0))
    async with invoices.listener(again):
        await handler.called(3)
    assert [notification.event.account for notification in handler.handled] == [1, 2, 3]


async def test_a_failing_entry_is_retried_three_times_and_becomes_a_dead_letter_with_its_count(
    invoices: NotificationQueue[Invoice],
) -> None:
    await invoices.schedule(Invoice(account=1), later(0), user_token="tok")
    handler = Handler(fails=9)
    async with invoices.listener(handler):
        async with asyncio.timeout(40):
            while not await invoices.queue.dead_letters.size():  # noqa: ASYNC110 -- no event reports it
                await asyncio.sleep(0.02)
    assert [notification.attempt for notification in handler.handled] == [1, 2, 3, 4]
    [dead] = await invoices.queue.dead_letters.peek()
    assert (dead.attempts, "mail server" in dead.reason) == (4, True)


async def test_an_entry_whose_handler_hangs_is_retried_and_its_dead_letter_raises_an_alarm(
    invoices: NotificationQueue[Invoice],
) -> None:
    alarms = asyncio.Queue[tuple[int, BaseException | None]]()

    async def hangs(_: Notification[Invoice]) -> None:
        await asyncio.sleep(3600)

    async def alarm(letter: zq.DeadLetter[Invoice], error: BaseException | None) -> None:
        await alarms.put((letter.value.account, error))

    await invoices.schedule(Invoice(account=1), later(0))
    async with invoices.listener(hangs, timeout=0.2, on_dead=alarm), asyncio.timeout(60):
        account, error = await alarms.get()
    assert (account, type(error)) == (1, TimeoutError)


async def test_a_redriven_entry_keeps_the_date_when_it_was_scheduled(invoices: NotificationQueue[Invoice]) -> None:
    await invoices.schedule(Invoice(account=1), later(0), search_key2="tenant")
    [scheduled] = await invoices.find("tenant")
    async with asyncio.timeout(30), invoices.queue.consume() as deliveries:
        async for delivery in deliveries:
            await delivery.reject("no such account")
            break
    assert await invoices.queue.dead_letters.redrive() == 1
    [redriven] = await invoices.find("tenant")
    assert redriven == scheduled


async def test_ready_entries_are_counted_per_queue_at_a_date(
    session: zq.QueueSession, invoices: NotificationQueue[Invoice]
) -> None:
    reminders = await Notifications(session).create("billing", "reminders", Invoice)
    await reminders.schedule(Invoice(account=1), later(-1))
    for hours in (-1, 1, 2, 50):
        await invoices.schedule(Invoice(account=1), later(hours * 3600))
    assert await invoices.ready() == 1
    assert await invoices.ready(later(1.5 * 3600)) == 2
    assert await invoices.ready(later(100 * 3600)) == 4
    assert await reminders.ready() == 1


async def test_an_entry_whose_hold_has_ended_is_counted_as_ready_before_a_consumer_runs(
    on_clock: OnClock, clock: TestClock
) -> None:
    invoices = await Notifications(await on_clock()).create("billing", "invoices", Invoice)
    for account in range(2):
        await invoices.schedule(Invoice(account=account), later(-1))
    [_] = await invoices.queue.leases.take(lifetime=60)
    assert await invoices.ready() == 1
    assert await invoices.ready(later(30)) == 1
    assert await invoices.ready(later(3600)) == 2, "the lease has ended by then"
    clock.advance(90)
    assert await invoices.ready() == 2
    assert [entry.status for entry in await invoices.find()] == ["future", "future"]


async def test_an_existing_and_an_unknown_notification_queue_raise_their_own_errors(
    session: zq.QueueSession, invoices: NotificationQueue[Invoice]
) -> None:
    notifications = Notifications(session)
    assert invoices.queue.name == "billing:invoices"
    with pytest.raises(AlreadyExistsError, match="invoices"):
        await notifications.create("billing", "invoices", Invoice)
    with pytest.raises(NotFoundError, match="refunds"):
        await notifications.get("billing", "refunds", Invoice)
    assert await notifications.list() == [("billing", "invoices")]


@pytest.mark.parametrize("force", [False, True])
async def test_a_deleted_notification_queue_is_gone_and_can_be_created_again(
    invoices: NotificationQueue[Invoice], other: zq.QueueSession, *, force: bool
) -> None:
    queues = Notifications(other)
    await queues.create("billing", "reminders", Invoice)
    await invoices.queue.admin.delete(force=force)
    assert await queues.list() == [("billing", "reminders")]
    with pytest.raises(NotFoundError, match="no notification queue 'invoices'"):
        await queues.get("billing", "invoices", Invoice)
    created = await queues.create("billing", "invoices", Invoice, policy=zq.ConsumeTimes(2))
    assert (await created.queue.configuration()).policy == zq.ConsumeTimes(2)


async def test_a_program_creates_a_notification_queue_again_with_other_settings_after_its_deletion(
    invoices: NotificationQueue[Invoice], session: zq.QueueSession
) -> None:
    await invoices.queue.admin.delete()
    queues = Notifications(session)
    created = await queues.create("billing", "invoices", Invoice, policy=zq.ConsumeTimes(2), history=False)
    assert (await created.queue.configuration()).policy == zq.ConsumeTimes(2)
    assert await queues.list() == [("billing", "invoices")]
    await created.queue.admin.delete()
    await invoices.schedule(Invoice(account=1), later(0))
    assert (await created.queue.configuration()).policy == zq.ConsumeTimes(2)
    assert await queues.list() == [("billing", "invoices")]


async def test_a_queue_that_a_program_creates_by_scheduling_after_a_deletion_has_its_settings(
    invoices: NotificationQueue[Invoice],
) -> None:
    before = await invoices.queue.configuration()
    await invoices.queue.admin.delete()
    await invoices.schedule(Invoice(account=1), later(0))
    after = await invoices.queue.configuration()
    assert (after.policy, after.history) == (before.policy, before.history)


async def test_a_program_that_got_a_queue_creates_it_by_scheduling_after_another_has_deleted_it(
    invoices: NotificationQueue[Invoice], session: zq.QueueSession, other: zq.QueueSession
) -> None:
    got = await Notifications(other).get("billing", "invoices", Invoice)
    before = await invoices.queue.configuration()
    await got.schedule(Invoice(account=1), later(3600))
    await invoices.queue.admin.delete(force=True)
    await got.schedule(Invoice(account=2), later(0))
    after = await got.queue.configuration()
    assert (after.policy, after.history) == (before.policy, before.history)
    assert await Notifications(session).list() == [("billing", "invoices")]
    assert await got.queue.size() == 1


async def test_a_queue_that_is_created_by_scheduling_is_registered(
    invoices: NotificationQueue[Invoice], session: zq.QueueSession
) -> None:
    await invoices.queue.admin.delete()
    await asyncio.gather(*(invoices.schedule(Invoice(account=number), later(0)) for number in range(3)))
    assert await Notifications(session).list() == [("billing", "invoices")]
    with pytest.raises(AlreadyExistsError, match="invoices"):
        await Notifications(session).create("billing", "invoices", Invoice)


async def test_bad_input_is_refused_before_anything_is_sent(invoices: NotificationQueue[Invoice]) -> None:
    with pytest.raises(zq.InvalidOptionError, match="zone"):
        await invoices.schedule(Invoice(account=1), datetime(2030, 1, 1))  # noqa: DTZ001 - naive on purpose
    with pytest.raises(zq.InvalidOptionError, match="search_key2"):
        await invoices.schedule(Invoice(account=1), later(1), search_key1="a")
    with pytest.raises(zq.PayloadError):
        await invoices.schedule("text", later(1))  # type: ignore[arg-type]
    with pytest.raises(zq.InvalidOptionError, match="zone"):
        await invoices.find("t", until=datetime(2030, 1, 1))  # noqa: DTZ001 - naive on purpose
    assert await invoices.find() == []


@pytest.mark.parametrize("option", ["search_key1", "search_key2", "user_token"])
@pytest.mark.parametrize("given", [5, True, b"t", "\ud800", ["t"]])
async def test_a_key_or_token_that_is_not_a_text_is_refused_by_its_name(
    invoices: NotificationQueue[Invoice], option: str, given: Any
) -> None:
    await invoices.schedule(Invoice(account=1), later(1), search_key2="t")
    refused = pytest.raises(zq.InvalidOptionError, match=f"^{option}=.*: give a str that UTF-8 can encode$")
    keys: dict[str, Any] = {"search_key2": "t", option: given}
    with refused:
        await invoices.schedule(Invoice(account=1), later(1), **keys)
    if option != "user_token":
        with refused:
            await invoices.find(**keys)
        with refused:
            await invoices.update("no such id", Invoice(account=1), **keys)
        with refused:
            await invoices.remove_all(**keys)
    assert len(await invoices.find()) == 1


async def test_removing_all_notifications_of_no_key_is_refused(invoices: NotificationQueue[Invoice]) -> None:
    await invoices.schedule(Invoice(account=1), later(1))
    with pytest.raises(zq.InvalidOptionError, match="search_key2"):
        await invoices.remove_all(None)  # type: ignore[arg-type] # as a program passes a key that it lacks
    assert len(await invoices.find()) == 1


class NoOffset(tzinfo):
    """A time zone that does not state its offset, so that Python treats its datetimes as naive."""

    def utcoffset(self, _date: datetime | None, /) -> None:
        return None

    dst = tzname = utcoffset


async def test_a_date_whose_time_zone_has_no_offset_is_refused(invoices: NotificationQueue[Invoice]) -> None:
    date = datetime(2030, 1, 1, tzinfo=NoOffset())
    for call in (
        invoices.schedule(Invoice(account=1), date),
        invoices.find("t", until=date),
        invoices.ready(date),
        anext(invoices.queue.history(since=date)),
    ):
        with pytest.raises(zq.InvalidOptionError, match="aware datetime"):
            await call


@pytest.mark.parametrize("microseconds", [1, 300, 499, 500, 501, 700, 999, 1000])
async def test_an_entry_is_found_and_counted_at_its_date_for_any_microseconds(
    invoices: NotificationQueue[Invoice], microseconds: int
) -> None:
    date = later(3600).replace(microsecond=0) + timedelta(microseconds=microseconds)
    await invoices.schedule(Invoice(account=1), date, search_key2="t")
    [found] = await invoices.find("t", until=date)
    assert found.effective_date == date
    assert (await invoices.ready(date), await invoices.ready(date - timedelta(milliseconds=1))) == (1, 0)
    assert await invoices.find("t", until=date - timedelta(milliseconds=1)) == []


async def test_an_entry_scheduled_for_a_past_date_is_found_and_counted_from_that_date_on(
    invoices: NotificationQueue[Invoice],
) -> None:
    date = later(-3600)
    for account, at in ((1, date), (2, later(3600))):
        await invoices.schedule(Invoice(account=account), at, search_key2="t")
    for until, count in ((later(-7200), 0), (date, 1), (later(0), 1), (later(7200), 2)):
        assert len(await invoices.find("t", until=until)) == len(await invoices.find(until=until)) == count
        assert await invoices.ready(until) == count
    assert await invoices.ready() == 1


async def test_the_retries_of_an_entry_with_a_past_date_count_from_that_date(
    on_clock: OnClock, clock: TestClock
) -> None:
    session = await on_clock()
    invoices = await Notifications(session).create("billing", "invoices", Invoice)
    attempts: list[int] = []

    async def handler(notification: Notification[Invoice]) -> None:
        attempts.append(notification.attempt)
        raise zq.Retry(schedule=[100, 200])

    async def called(count: int) -> bool:
        return len(attempts) == count and not await invoices.queue.claimed()

    await invoices.schedule(Invoice(account=1), later(-150))
    async with invoices.listener(handler):
        await eventually(lambda: called(2))  # the first retry was due 50 s ago
        (waiting,) = await invoices.find()
        assert (waiting.status, waiting.attempt) == ("future", 2)
        clock.advance(51)
        await eventually(lambda: called(3))
    assert attempts == [1, 2, 3]
    (dead,) = await invoices.queue.dead_letters.peek()
    assert dead.attempts == 3


async def created_again(
    session: zq.QueueSession, other: zq.QueueSession
) -> tuple[NotificationQueue[bytes], NotificationQueue[bytes]]:
    """Return one notification queue twice: of a session that has not read its configuration, and of the other."""
    everyone = Notifications(other)
    old = await everyone.create("shop", "mails", bytes)
    Between(session, 1, old.queue.admin.delete)
    mails = await Notifications(session).get("shop", "mails", bytes)  # the queue is deleted before it is read
    return mails, await everyone.create("shop", "mails", bytes, policy=zq.AtLeastOnce())


async def test_a_message_of_a_group_in_hand_is_not_removed_by_a_session_that_has_not_read_the_configuration(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    """Without it, the session does not look for the lock of the group."""
    mails, new = await created_again(session, other)
    held = await new.queue.put(b"held", group="g")
    async with other.transaction() as tx:
        assert await tx.take(new.queue, timeout=30) is not None
        assert not await mails.remove(held)


async def test_a_message_of_a_group_in_hand_is_shown_as_such_by_a_session_that_has_not_read_the_configuration(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    mails, new = await created_again(session, other)
    await new.queue.put(b"held", group="g")
    await new.queue.put(b"behind", group="g")
    async with other.transaction() as tx:
        assert await tx.take(new.queue, timeout=30) is not None
        assert [found.status for found in await mails.find()] == ["in processing"] * 2
        assert await mails.ready() == 0
