"""Occurrences are put as the options of their jobs require, and a defective job does not affect the others."""

from __future__ import annotations

import asyncio
import json
import math
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.layout.jobs import SchedulePaths
from aiozkqueue.queue.put.prepare import prepare
from aiozkqueue.schedule import Jobs, Scheduler
from aiozkqueue.schedule.cron import Cron, to_put
from aiozkqueue.schedule.overdue import overdue_jobs
from aiozkqueue.schedule.scheduler import LONGEST_SLEEP
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import run_virtual
from aiozkqueue.testing.simulator import Fault
from aiozkqueue.testing.simulator.cluster import make_cluster
from aiozkqueue.zookeeper import SetData
from tests.simulation.between import Between

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.schedule import Job

#: Maximum computations of times and preparations of puts between two turns of the event loop: those of two jobs.
MOST_IN_A_TURN = 10
EVERY_TEN_SECONDS = "*/10 * * * * *"


def play(program: Callable[[zq.QueueSession], Awaitable[None]], limit: float = 3600) -> None:
    """Run a program with a session."""

    async def main() -> None:
        async with make_cluster(seed=0).connect() as session:
            await program(session)

    run_virtual(main, limit=limit)


def due(job: Job, count: int) -> list[datetime]:
    """Return the first occurrences of a job that occurs every ten seconds."""
    assert job.next is not None
    return [job.next + timedelta(seconds=10 * n) for n in range(count)]


async def taken(session: zq.QueueSession, queue: zq.Queue[bytes], count: int) -> list[datetime]:
    """Take messages of a job; return the dates of their occurrences."""
    dates: list[datetime] = []
    for _ in range(count):
        async with session.transaction() as tx:
            message = await tx.take(queue, timeout=30)
            assert message is not None
            dates.append(datetime.fromisoformat(message.headers["occurrence"]))
    return dates


@pytest.mark.parametrize("unique", [True, "ignore"])
def test_occurrences_with_one_key_that_are_due_together_follow_each_other(unique: Any) -> None:
    async def program(session: zq.QueueSession) -> None:
        reports, jobs = session.queue("reports"), Jobs(session)
        added = await jobs.add("report", EVERY_TEN_SECONDS, reports, b"x", unique=unique)
        await asyncio.sleep(35)
        async with Scheduler(session):
            dates = await taken(session, reports, 6)
        if unique is True:
            assert dates == due(added, 6), "each occurrence waits for the previous one"
        else:
            assert dates == [due(added, 1)[0], *due(added, 8)[3:]], (
                "occurrences that are due with the first are skipped"
            )

    play(program)


def test_an_occurrence_whose_key_is_held_is_left_out_or_put_when_the_key_is_free() -> None:
    async def program(session: zq.QueueSession) -> None:
        reports, calls, jobs = session.queue("reports"), session.queue("calls"), Jobs(session)
        added = await jobs.add("report", EVERY_TEN_SECONDS, reports, b"x", unique="ignore")
        await jobs.add("call", EVERY_TEN_SECONDS, calls, b"x", unique=True)
        async with Scheduler(session):
            await asyncio.sleep(35)
            assert (await reports.size(), await calls.size()) == (1, 1)
            assert (await jobs.get("report")).decided == due(added, 3)[2]
            call = await jobs.get("call")
            assert call.decided == call.last == added.next
            dates = await taken(session, calls, 5)
        assert dates == due(added, 5)

    play(program)


def test_occurrences_during_a_pause_are_not_put_after_it() -> None:
    async def program(session: zq.QueueSession) -> None:
        reports, jobs = session.queue("reports"), Jobs(session)
        await jobs.add("report", EVERY_TEN_SECONDS, reports, b"x", missed="all")
        async with Scheduler(session):
            await asyncio.sleep(25)
            await jobs.pause("report")
            last = (await taken(session, reports, await reports.size()))[-1]
            await asyncio.sleep(60)
            await jobs.resume("report")
            [following] = await taken(session, reports, 1)
        assert following >= last + timedelta(seconds=60)

    play(program)


def test_a_scheduler_waits_for_the_next_occurrence_after_it_has_skipped_missed_ones() -> None:
    async def program(session: zq.QueueSession) -> None:
        await Jobs(session).add("report", "0 3 * * *", session.queue("reports"), b"x", missed="skip")
        await asyncio.sleep(30 * 3600)
        zookeeper: Any = core_of(session).zookeeper  # Any: its methods are replaced
        exists, checks = zookeeper.exists, list[str]()

        async def counted(path: str, **options: Any) -> Any:
            checks.append(path)
            return await exists(path, **options)

        zookeeper.exists = counted
        async with Scheduler(session):
            await asyncio.sleep(2)
        assert len(checks) < 20
        assert await session.queue("reports").size() == 0

    play(program, limit=200 * 3600)


def test_no_occurrence_is_put_twice_if_a_job_is_resumed_after_the_clock_was_set_back() -> None:
    async def main() -> None:
        cluster = make_cluster(seed=0, servers=3)
        async with cluster.connect() as session:
            reports, jobs = session.queue("reports"), Jobs(session)
            await jobs.add("report", EVERY_TEN_SECONDS, reports, b"x", missed="all")
            async with Scheduler(session):
                dates = await taken(session, reports, 4)
                cluster.ensemble.offset -= 15
                cluster.ensemble.elect()
                await asyncio.sleep(5)
                await jobs.pause("report")
                await jobs.resume("report")
                dates += await taken(session, reports, 4)
        assert dates == sorted(set(dates))

    run_virtual(main)


def test_a_job_that_pauses_because_the_clock_was_set_back_is_reported_with_its_remedy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        cluster = make_cluster()
        async with cluster.connect() as session, Scheduler(session):
            reports, jobs = session.queue("reports"), Jobs(session)
            await jobs.add("report", EVERY_TEN_SECONDS, reports, b"x")
            await taken(session, reports, 3)
            assert "set back" not in caplog.text
            cluster.ensemble.offset -= 3600
            await asyncio.sleep(120)
            assert "are already decided, so nothing is put until then" in caplog.text
            assert "leader was set back; to continue now, remove the job and declare it again" in caplog.text
            await reports.purge()
            await jobs.remove("report")
            await jobs.declare("report", EVERY_TEN_SECONDS, reports, b"x")
            await taken(session, reports, 3)

    run_virtual(main, limit=1000)


def test_each_missed_occurrence_is_put_into_a_queue_that_accepts_few_messages_at_once() -> None:
    async def program(session: zq.QueueSession) -> None:
        reports, jobs = session.queue("reports"), Jobs(session)
        await reports.configure(zq.QueueConfig(max_size=32))
        added = await jobs.add("report", EVERY_TEN_SECONDS, reports, b"x", missed="all", tolerance=1)
        await asyncio.sleep(395)  # more occurrences than the queue may hold
        async with Scheduler(session):
            assert await taken(session, reports, 42) == due(added, 42)

    play(program)


def test_large_missed_occurrences_are_put_in_several_requests() -> None:
    async def program(session: zq.QueueSession) -> None:
        reports, jobs = session.queue("reports"), Jobs(session)
        added = await jobs.add("report", EVERY_TEN_SECONDS, reports, b"x" * 40_000, missed="all", tolerance=1)
        await asyncio.sleep(605)
        async with Scheduler(session):
            assert await taken(session, reports, 60) == due(added, 60)

    play(program)


def test_a_job_that_is_added_while_the_scheduler_has_no_connection_is_followed() -> None:
    async def main() -> None:
        cluster = make_cluster(seed=0)
        async with cluster.connect(name="scheduler") as session, cluster.connect() as other, Scheduler(session):
            await asyncio.sleep(1)
            cluster.ensemble.judge = lambda connection, _: (
                Fault.LOST_BEFORE if connection.client.name == "scheduler" else None
            )
            cluster.cut("scheduler")
            await asyncio.sleep(1)
            added = await Jobs(other).add("report", EVERY_TEN_SECONDS, "reports", b"x")
            await asyncio.sleep(1)
            cluster.ensemble.judge = lambda *_: None
            assert await taken(other, other.queue("reports"), 2) == due(added, 2)

    run_virtual(main)


def test_fields_of_a_newer_version_survive_the_declaration_of_a_job() -> None:
    async def program(session: zq.QueueSession) -> None:
        jobs, zookeeper = Jobs(session), core_of(session).zookeeper
        await jobs.declare("report", EVERY_TEN_SECONDS, "reports", b"x")
        path = SchedulePaths(core_of(session).root).job("report")
        data, _ = await zookeeper.read(path)
        await zookeeper.multi([SetData(path, json.dumps({**json.loads(data), "newer": 1}).encode())])
        await jobs.declare("report", EVERY_TEN_SECONDS, "reports", b"y")
        changed = json.loads((await zookeeper.read(path)).data)
        assert (changed["body"], changed["newer"]) == ("y", 1)

    play(program)


@pytest.mark.parametrize(
    "odd",
    [{"options": {"headers": [1]}}, {"options": {"headers": "abc"}}, {"tolerance": 1e307}, {"cron": "0 0 31 2 *"}],
)
def test_a_defective_job_does_not_stop_the_others(odd: dict[str, Any]) -> None:
    """Another program has stored the defective job."""

    async def program(session: zq.QueueSession) -> None:
        jobs, zookeeper = Jobs(session), core_of(session).zookeeper
        await jobs.add("odd", EVERY_TEN_SECONDS, "odd", b"")
        await jobs.add("sound", EVERY_TEN_SECONDS, "sound", b"")
        path = SchedulePaths(core_of(session).root).job("odd")
        data, _ = await zookeeper.read(path)
        await zookeeper.multi([SetData(path, json.dumps({**json.loads(data), **odd}).encode())])
        async with Scheduler(session):
            await taken(session, session.queue("sound"), 3)
        assert [job.name for job in await jobs.list()] == (["odd", "sound"] if "tolerance" in odd else ["sound"])

    play(program)


def test_an_unexpected_error_of_a_job_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def odd(cron: Cron, **options: Any) -> list[int]:
        if options["missed"] == "skip":
            raise TypeError
        return to_put(cron, **options)

    async def program(session: zq.QueueSession) -> None:
        await Jobs(session).add("odd", EVERY_TEN_SECONDS, "odd", b"", missed="skip")
        await Jobs(session).add("sound", EVERY_TEN_SECONDS, "sound", b"")
        async with Scheduler(session):
            await taken(session, session.queue("sound"), 3)
            monkeypatch.undo()
            await taken(session, session.queue("odd"), 1)

    monkeypatch.setattr("aiozkqueue.schedule.scheduler.to_put", odd)
    play(program)
    assert "job odd cannot be used" in caplog.text


def test_a_change_of_one_job_does_not_compute_the_times_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[Cron] = []

    def counting(cron: Cron, **options: Any) -> list[int]:
        computed.append(cron)
        return to_put(cron, **options)

    monkeypatch.setattr("aiozkqueue.schedule.scheduler.to_put", counting)

    async def program(session: zq.QueueSession) -> None:
        jobs = Jobs(session)
        for number in range(20):
            await jobs.add(f"job-{number}", "0 0 * * *", "daily", b"")
        async with Scheduler(session):
            await asyncio.sleep(1)
            assert len(computed) == 20
            await jobs.change("job-7", cron="*/10 * * * * *")
            await taken(session, session.queue("daily"), 2)
            await jobs.remove("job-7")
            await asyncio.sleep(1)
        assert 20 < len(computed) <= 30, "only the times of the changed job"

    play(program)


def test_the_messages_of_a_job_can_live_forever_in_a_queue_with_a_lifetime() -> None:
    async def program(session: zq.QueueSession) -> None:
        reports, jobs = session.queue("reports"), Jobs(session)
        await reports.configure(zq.QueueConfig(ttl=1))
        given: dict[str, Any] = {"ttl": math.inf}
        added = await jobs.add("report", EVERY_TEN_SECONDS, reports, b"x", **given)
        assert await jobs.declare("report", EVERY_TEN_SECONDS, reports, b"x", **given) == added
        async with Scheduler(session):
            await asyncio.sleep(60)
            assert await taken(session, reports, 3) == due(added, 3)

    play(program)


def test_a_job_for_the_queue_of_another_program_is_refused() -> None:
    async def program(session: zq.QueueSession) -> None:
        for queue in (session.kazoo_queue("/kazoo"), session.curator_queue("/curator")):
            for method in (Jobs(session).add, Jobs(session).declare):
                with pytest.raises(zq.InvalidOptionError, match=queue.name):
                    await method("report", EVERY_TEN_SECONDS, queue, b"x")
        assert not await core_of(session).zookeeper.exists("/zms/.schedule")

    play(program)


@pytest.mark.parametrize("act", ["occurrence", "pause"])
@pytest.mark.parametrize("number", range(1, 13))
def test_a_job_that_was_removed_and_added_again_is_not_replaced_by_the_old_one(act: str, number: int) -> None:
    """Both jobs are at the same version of their znodes."""

    async def program() -> None:
        cluster = make_cluster(seed=0)
        async with cluster.connect() as session, cluster.connect() as operator:
            jobs, mine = Jobs(session), Jobs(operator)
            await jobs.add("job", EVERY_TEN_SECONDS, "old", b"old")

            async def replace() -> None:
                await mine.remove("job")
                await mine.add("job", "0 0 1 1 *", "new", b"new")

            meanwhile = Between(session, number, replace)
            if act == "occurrence":
                async with Scheduler(session):
                    await asyncio.sleep(15)
            else:
                await jobs.pause("job")
            if meanwhile.reached:
                job = await mine.get("job")
                assert (job.queue, job.body) == ("new", b"new")

    run_virtual(program)


def test_thousands_of_jobs_do_not_keep_the_event_loop_from_other_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs_number, begun, most = 500, 0, 0

    def reset() -> None:
        nonlocal begun
        begun = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal begun, most
            if not begun:
                asyncio.get_running_loop().call_soon(reset)
            begun += 1
            most = max(most, begun)
            return function(*args, **options)

        return call

    async def program(session: zq.QueueSession) -> None:
        jobs = Jobs(session)
        for number in range(jobs_number):
            await jobs.add(f"job-{number}", "*/10 * * * *", "reports", b"")
        await asyncio.sleep(1200)
        monkeypatch.setattr(Cron, "after", counted(Cron.after))
        monkeypatch.setattr("aiozkqueue.schedule.scheduler.prepare", counted(prepare))
        async with Scheduler(session):
            async with asyncio.timeout(60):
                while await session.queue("reports").size() < jobs_number:  # noqa: ASYNC110 - no event reports it
                    await asyncio.sleep(0.1)
            assert len(await jobs.list()) == jobs_number
        await overdue_jobs(session, 0.0)
        assert await session.queue("reports").size() == jobs_number

    play(program)
    assert 0 < most <= MOST_IN_A_TURN


def test_a_job_is_not_late_because_the_clock_was_behind_for_a_while() -> None:
    """The scheduler has checked its jobs meanwhile, and by that clock the next check was far away."""

    async def main() -> None:
        cluster, loop = make_cluster(), asyncio.get_running_loop()
        async with cluster.connect() as session, Scheduler(session):
            added = await Jobs(session).add("report", "0 */4 * * *", session.queue("reports"), b"x")
            assert added.next is not None
            begin = loop.time()
            due_in = (added.next - added.decided).total_seconds()
            assert due_in > 2 * LONGEST_SLEEP
            cluster.ensemble.offset -= 36_000
            await asyncio.sleep(LONGEST_SLEEP + 60)
            cluster.ensemble.offset += 36_000
            async with session.transaction() as tx:
                assert await tx.take(session.queue("reports"), timeout=50_000) is not None
            assert loop.time() - begin < due_in + LONGEST_SLEEP + 1

    run_virtual(main, limit=100_000)
