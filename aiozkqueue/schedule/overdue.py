"""Jobs whose occurrences are not put, as findings for `aiozkqueue doctor` and `aiozkqueue jobs list`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import AccessDeniedError, InvalidScheduleError, MissingExtraError
from aiozkqueue.layout.jobs import SchedulePaths
from aiozkqueue.moments import milliseconds_at, milliseconds_in
from aiozkqueue.operations.doctor.diagnosis import Finding, Severity
from aiozkqueue.queue.commit.register import server_time
from aiozkqueue.session.internals import core_of
from aiozkqueue.wording import counted

from .cron import load
from .jobs import JOBS, read_jobs, readable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aiozkqueue.layout.jobs import JobRecord
    from aiozkqueue.session.session import QueueSession

    from .jobs import Job

#: How late an occurrence is when no scheduler seems to put it, milliseconds.
OVERDUE_AFTER: Final = 60_000
_SHOWN: Final = 3


async def overdue_jobs(session: QueueSession, clock_offset: float) -> list[Finding]:
    """Return the findings about jobs whose next occurrence has passed.

    ``clock_offset`` is the difference between ZooKeeper's clock and this machine's, seconds.

    Raises: AccessDeniedError, SessionClosedError, WrongLoopError.
    """
    runtime = core_of(session)
    paths = SchedulePaths(runtime.root)
    with readable(JOBS, paths.base):
        jobs = {name: job for name, (job, _) in (await read_jobs(runtime, paths, None)).items() if not job.paused}
    if not jobs:
        return []
    now = milliseconds_in(runtime.clock.time() + clock_offset)
    try:
        late = [name for name, job in jobs.items() if await _is_late(job, now)]
    except MissingExtraError as error:
        return [Finding(Severity.INFO, "jobs", f"cannot check {counted(len(jobs), 'job')}", str(error))]
    return [*findings_about(late)]


async def overdue_among(session: QueueSession, jobs: Sequence[Job]) -> list[str]:
    """Return the names of the jobs whose next occurrence passed so long ago that no scheduler seems to run.

    This machine's clock decides if the user may not write, because ZooKeeper states its time only for a write.

    Raises: ConnectionLostError, OutcomeUnknownError, SessionClosedError, WrongLoopError.
    """
    awaited = {job.name: milliseconds_at(job.next) for job in jobs if not job.paused and job.next is not None}
    if not awaited:
        return []
    runtime = core_of(session)
    try:
        now = await server_time(runtime, JOBS)
    except AccessDeniedError:
        now = milliseconds_in(runtime.clock.time())
    return [name for name, due in awaited.items() if due + OVERDUE_AFTER < now]


async def _is_late(job: JobRecord, now: int) -> bool:
    try:
        cron = await load(job.cron, job.zone)
    except InvalidScheduleError:  # from a newer version, or with a zone that is not installed here
        return False
    due = next(cron.after(job.last), None)
    return due is not None and due + OVERDUE_AFTER < now


def findings_about(late: list[str]) -> Iterator[Finding]:
    """Return the finding about overdue jobs; none if there are none."""
    if late:
        names = ", ".join(late[:_SHOWN]) + (", …" if len(late) > _SHOWN else "")
        yield Finding(
            Severity.WARNING,
            "jobs",
            f"{counted(len(late), 'job')} overdue: {names}. No scheduler seems to run, or its puts are refused",
            "run `aiozkqueue jobs run`, or a Scheduler in a worker; if one runs, its log has the reason, such as a full"
            " queue or a held unique key",
        )
