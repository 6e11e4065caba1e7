"""The recurring jobs of the queues that the visitor may see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.errors import MissingExtraError, NotFoundError
from aiozkqueue.http.dashboard.web.forms import SMALL_FORM_LIMIT, read_form
from aiozkqueue.http.dashboard.web.page import PageError
from aiozkqueue.schedule import Jobs

if TYPE_CHECKING:
    from starlette.responses import Response

    from aiozkqueue.http.dashboard.web.visit import Visit
    from aiozkqueue.schedule import Job


async def show(visit: Visit) -> Response:
    """Show the jobs and their next occurrences."""
    try:
        jobs = await visit.shared.get(("jobs",), Jobs(visit.session).list)
    except MissingExtraError as error:
        raise PageError(501, "Jobs are not available", str(error)) from None
    shown = [(job, visit.visitor.may_change(job.queue)) for job in jobs if visit.sees(job.queue)]
    return visit.page("jobs.html", section="/jobs", jobs=shown)


async def change(visit: Visit) -> Response:
    """Pause or resume a job."""
    form = await read_form(visit.request, SMALL_FORM_LIMIT)
    visit.check(form)
    jobs, name, action = Jobs(visit.session), form.get("job"), form.get("action")
    job = _known(visit, await jobs.list(), name)
    if not visit.visitor.may_change(job.queue):
        raise PageError(
            403, "Not permitted", f"This key may not change the job {name!r}: it needs manage on its queue."
        )
    if action not in {"pause", "resume"}:
        raise PageError(400, "Nothing to do", "The form has no valid action.")
    try:
        await (jobs.pause(name) if action == "pause" else jobs.resume(name))
    except NotFoundError as error:
        raise PageError(404, "No such job", f"The job {name!r} has been removed in the meantime.") from error
    visit.shared.drop(("jobs",))
    return visit.finished("/jobs", f"The job {name} is {action}d.")


def _known(visit: Visit, jobs: list[Job], name: str) -> Job:
    for job in jobs:
        if job.name == name and visit.sees(job.queue):
            return job
    raise PageError(404, "No such job", f"There is no job {name!r}.")
