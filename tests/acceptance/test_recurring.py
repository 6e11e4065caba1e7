"""Recurring jobs: each occurrence of a cron expression is put once, for any number of schedulers."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.errors import AlreadyExistsError, InvalidNameError, InvalidScheduleError, NotFoundError
from aiozkqueue.schedule import Jobs, Scheduler
from aiozkqueue.schedule.overdue import overdue_jobs
from tests.integration.queue.test_obstacles import set_acl

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.testing import TestClock
    from tests.acceptance.conftest import OnClock
    from tests.integration.queue.conftest import Opener
    from tests.observer import Observer

EVERY_SECOND = "* * * * * *"


async def occurrences(queue: zq.Queue[bytes], count: int, timeout: float = 30) -> list[datetime]:
    """Wait until this many messages are stored; return their due dates."""
    async with asyncio.timeout(timeout):
        while await queue.size() < count:  # noqa: ASYNC110 -- no event reports it
            await asyncio.sleep(0.05)
    return [datetime.fromisoformat(message.headers["occurrence"]) for message in await queue.peek(10_000)]


async def test_any_number_of_schedulers_puts_each_occurrence_once(open_session: Opener) -> None:
    sessions = [await open_session() for _ in range(3)]
    jobs, reports = Jobs(sessions[0]), sessions[0].queue("reports")
    before = datetime.now(UTC) - timedelta(seconds=1)
    await jobs.add("report", EVERY_SECOND, reports, b"all", headers={"kind": "daily"})
    async with Scheduler(sessions[0]), Scheduler(sessions[1]), Scheduler(sessions[2]):
        dates = await occurrences(reports, 4)
    seconds = [date.timestamp() for date in dates]
    assert seconds == [seconds[0] + n for n in range(len(seconds))], "each second occurs once, and none is missing"
    assert before < dates[0] < before + timedelta(seconds=20)
    first = (await reports.peek(1))[0]
    assert (first.value, first.headers["job"], first.headers["kind"]) == (b"all", "report", "daily")
    assert first.enqueued_at >= dates[0], "no occurrence is put before it is due"


async def test_jobs_outlive_their_schedulers_and_missed_occurrences_follow_the_jobs_setting(
    session: zq.QueueSession,
) -> None:
    jobs = Jobs(session)
    for missed in ("skip", "last", "all"):
        await jobs.add(missed, EVERY_SECOND, missed, b"", missed=missed, tolerance=1, limit=3)
    await asyncio.sleep(4.5)  # no scheduler runs during this time
    async with Scheduler(session):
        dates = {missed: await occurrences(session.queue(missed), 1) for missed in ("last", "all", "skip")}
        dates["all"] = await occurrences(session.queue("all"), 3)
    assert dates["all"][0] < dates["skip"][0], "'all' puts the missed occurrences, 'skip' does not"
    assert dates["all"][2] - dates["all"][0] == timedelta(seconds=2)
    assert dates["last"][0] >= dates["all"][2]


async def test_a_missed_occurrence_is_put_although_a_bounded_queue_has_no_capacity_for_all_of_them(
    session: zq.QueueSession,
) -> None:
    reports = session.queue("reports")
    await reports.configure(zq.QueueConfig(max_size=32))
    await reports.put_many([b""] * 31, headers={"occurrence": "2000-01-01T00:00:00+00:00"})
    await Jobs(session).add("report", EVERY_SECOND, reports, b"", missed="all", tolerance=1)
    await asyncio.sleep(3.5)  # no scheduler runs during this time
    async with Scheduler(session):
        await occurrences(reports, 32, timeout=20)


async def test_a_refused_put_is_tried_again_every_five_seconds_although_other_jobs_occur_in_between(
    session: zq.QueueSession, caplog: pytest.LogCaptureFixture
) -> None:
    full, reports = session.queue("full"), session.queue("reports")
    await full.configure(zq.QueueConfig(max_size=1))
    await full.put(b"")
    await Jobs(session).add("refused", EVERY_SECOND, full, b"")
    await Jobs(session).add("report", EVERY_SECOND, reports, b"")
    start = time.monotonic()
    async with Scheduler(session):
        await occurrences(reports, 5)
        refused = [record for record in caplog.records if record.message.startswith("job refused: ")]
        seconds = time.monotonic() - start
    assert 1 <= len(refused) <= 1 + seconds / 5


async def test_a_job_can_be_changed_paused_resumed_and_removed_while_it_is_scheduled(session: zq.QueueSession) -> None:
    jobs, reports = Jobs(session), session.queue("reports")
    await jobs.add("report", "0 0 1 1 *", reports, b"")
    async with Scheduler(session):
        changed = await jobs.change("report", cron=EVERY_SECOND, missed="all")
        assert changed.next is not None
        assert changed.last is None, "it has never run"
        await occurrences(reports, 1)
        assert (await jobs.pause("report")).paused
        paused_at = await reports.size()
        await asyncio.sleep(2.2)
        assert await reports.size() <= paused_at + 1, "one put may have been in progress"
        resumed = await jobs.resume("report")
        assert resumed.last is not None
        dates = await occurrences(reports, paused_at + 3)
        assert resumed.last in dates[: paused_at + 1], "a job keeps its last run"
        assert not [date for date in dates[paused_at + 1 :] if date <= resumed.decided], (
            "occurrences during the pause are not put later"
        )
        await jobs.remove("report")
        assert await jobs.list() == []
    with pytest.raises(NotFoundError, match="report"):
        await jobs.get("report")


async def test_a_job_whose_missed_occurrences_are_skipped_is_not_reported_as_overdue_while_a_scheduler_runs(
    on_clock: OnClock, clock: TestClock
) -> None:
    session = await on_clock()
    jobs = Jobs(session)
    soon = datetime.now(UTC) + timedelta(minutes=10)
    added = await jobs.add("report", f"{soon.minute} {soon.hour} * * *", "reports", b"", missed="skip")
    assert added.next is not None
    clock.advance(3600)
    assert await overdue_jobs(session, 0.0), "no scheduler has run"
    async with Scheduler(session), Scheduler(await on_clock()):
        async with asyncio.timeout(30):
            while (skipped := await jobs.get("report")).decided < added.next:  # noqa: ASYNC110 -- no event reports it
                await asyncio.sleep(0.05)
        assert not await overdue_jobs(session, 0.0)
    assert (skipped.next, skipped.last) == (added.next + timedelta(days=1), None)
    assert await session.queue("reports").size() == 0


async def test_the_next_occurrence_of_a_paused_job_is_in_the_future(on_clock: OnClock, clock: TestClock) -> None:
    jobs = Jobs(await on_clock())
    await jobs.add("report", "0 3 * * *", "reports", b"")
    await jobs.pause("report")
    clock.advance(timedelta(days=10))
    for paused in (await jobs.get("report"), *await jobs.list()):
        assert paused.next is not None
        assert paused.next > datetime.now(UTC) + timedelta(days=9)


async def test_a_job_follows_its_time_zone(session: zq.QueueSession) -> None:
    job = await Jobs(session).add("nightly", "0 3 * * *", "reports", b"", zone="Asia/Kathmandu")
    assert job.next is not None
    assert (job.next.hour, job.next.minute) == (21, 15)


async def test_each_process_can_declare_the_same_job_when_it_starts(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    both = [Jobs(session), Jobs(other)]
    await asyncio.gather(*(jobs.declare("nightly", "0 3 * * *", "reports", b"x") for jobs in both * 5))
    before = await both[0].get("nightly")
    assert await both[1].declare("nightly", "0 3 * * *", "reports", b"x") == before, "nothing has changed"
    changed = await both[1].declare("nightly", "0 4 * * *", "reports", b"y", missed="all")
    assert (changed.cron, changed.body, changed.missed) == ("0 4 * * *", b"y", "all")
    assert [job.name for job in await both[0].list()] == ["nightly"]


async def test_an_existing_and_an_unknown_job_raise_their_own_errors(session: zq.QueueSession) -> None:
    jobs = Jobs(session)
    await jobs.add("nightly", "0 3 * * *", "reports", b"")
    with pytest.raises(AlreadyExistsError, match="nightly"):
        await jobs.add("nightly", "0 4 * * *", "reports", b"")
    for ask in (jobs.get, jobs.pause, jobs.resume, jobs.remove, jobs.change):
        with pytest.raises(NotFoundError, match="weekly"):
            await ask("weekly")


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"cron": "0 25 * * *"}, InvalidScheduleError),
        ({"cron": "0 0 31 2 *"}, InvalidScheduleError),
        ({"cron": ",".join(["0"] * 600) + " * * * *"}, InvalidScheduleError),
        ({"zone": "Mars/Olympus"}, InvalidScheduleError),
        ({"missed": "some"}, zq.InvalidOptionError),
        ({"limit": 0}, zq.InvalidOptionError),
        ({"limit": 100_000}, zq.InvalidOptionError),
        ({"tolerance": 0.1}, zq.InvalidOptionError),
        ({"tolerance": 1e306}, zq.InvalidOptionError),
        ({"delay": 5}, zq.InvalidOptionError),
        ({"headers": {"job": "x"}}, zq.InvalidOptionError),
        ({"value": "text"}, zq.PayloadError),
        ({"value": b"x" * 70_000}, zq.InvalidOptionError),
        ({"queue": "no/queue"}, InvalidNameError),
        ({"name": "../x"}, InvalidNameError),
    ],
)
async def test_bad_input_is_refused_before_anything_is_sent(
    session: zq.QueueSession,
    server_view: Observer,
    queue_root: str,
    wrong: dict[str, Any],
    error: type[zq.QueueError],
) -> None:
    arguments: dict[str, Any] = {"name": "j", "cron": "0 3 * * *", "queue": "reports", "value": b""} | wrong
    for method in (Jobs(session).add, Jobs(session).declare):
        with pytest.raises(error):
            await method(**arguments)
    assert not await server_view.exists(f"{queue_root}/.schedule")


async def test_a_scheduler_continues_after_its_session_ended(
    session: zq.QueueSession, expire: Callable[[zq.QueueSession], Awaitable[None]]
) -> None:
    reports = session.queue("reports")
    await Jobs(session).add("report", EVERY_SECOND, reports, b"", missed="all")
    async with Scheduler(session):
        await occurrences(reports, 1)
        await expire(session)
        dates = await occurrences(reports, await reports.size() + 2)
    seconds = [date.timestamp() for date in dates]
    assert seconds == [seconds[0] + n for n in range(len(seconds))]


async def test_a_scheduler_ignores_unreadable_jobs(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    reports = session.queue("reports")
    await server_view.create(f"{queue_root}/.schedule/broken", b"{not json")
    await Jobs(session).add("report", EVERY_SECOND, reports, b"\xff\x00")
    async with Scheduler(session):
        await occurrences(reports, 1)
    assert (await reports.peek(1))[0].value == b"\xff\x00"
    assert [job.name for job in await Jobs(session).list()] == ["report"]


async def test_a_job_of_another_user_does_not_keep_a_scheduler_from_its_own(
    session: zq.QueueSession, server_view: Observer, queue_root: str, caplog: pytest.LogCaptureFixture
) -> None:
    jobs, reports = Jobs(session), session.queue("reports")
    await jobs.add("mine", EVERY_SECOND, reports, b"x")
    await jobs.add("sealed", EVERY_SECOND, reports, b"y")
    await set_acl(server_view, f"{queue_root}/.schedule/sealed", readable=False)
    async with Scheduler(session):
        await occurrences(reports, 1)
    assert (await reports.peek(1))[0].value == b"x"
    assert [job.name for job in await jobs.list()] == ["mine"]
    assert "job sealed is skipped" in caplog.text


async def test_a_session_logs_once_that_it_skips_a_job(
    session: zq.QueueSession, server_view: Observer, queue_root: str, caplog: pytest.LogCaptureFixture
) -> None:
    jobs, reports = Jobs(session), session.queue("reports")
    for name in ("mine", "sealed", "zone"):
        await jobs.add(name, EVERY_SECOND, reports, b"x")
    await set_acl(server_view, f"{queue_root}/.schedule/sealed", readable=False)
    await server_view.create(f"{queue_root}/.schedule/broken", b"{not json")
    record = json.loads(await server_view.get(f"{queue_root}/.schedule/zone"))
    await server_view.set(f"{queue_root}/.schedule/zone", json.dumps(record | {"zone": "Mars/Olympus"}).encode())
    async with Scheduler(session):
        await occurrences(reports, 1)
    for _ in range(3):
        assert [job.name for job in await jobs.list()] == ["mine"]
    for name in ("sealed", "broken", "zone"):
        assert len([record for record in caplog.records if f"job {name} is skipped" in record.getMessage()]) == 1
    await server_view.set(f"{queue_root}/.schedule/broken", b"[]")
    await jobs.list()
    assert caplog.text.count("job broken is skipped") == 2


async def test_schedulers_and_listeners_run_side_by_side(session: zq.QueueSession) -> None:
    reports = session.queue("reports")
    await Jobs(session).add("report", EVERY_SECOND, reports, b"")
    scheduler = Scheduler(session)
    handled: list[str] = []

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        handled.append(delivery.headers["occurrence"])
        if len(handled) == 2:
            scheduler.stop()
            listener.stop()

    listener = session.listener(reports, handler)
    await zq.run(listener, scheduler, signals=())
    assert len(set(handled)) == len(handled) == 2
