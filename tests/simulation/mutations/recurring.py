"""Defects in recurring jobs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiozkqueue.schedule import cron, scheduler
from aiozkqueue.zookeeper import SetData
from tests.simulation.mutations import mutation
from tests.simulation.mutations.sending import leave_out, replace_where
from tests.simulation.workload import run

if TYPE_CHECKING:
    import pytest

of_jobs = partial(run, feature="recurring")


@mutation(of_jobs)
def job_written_at_any_version(patch: pytest.MonkeyPatch) -> None:
    replace_where(
        patch,
        lambda operation: "/.schedule/" in operation.path and isinstance(operation, SetData),
        lambda operation: operation._replace(version=-1),
    )


@mutation(of_jobs)
def occurrence_not_recorded_in_its_job(patch: pytest.MonkeyPatch) -> None:
    leave_out(patch, lambda operation: "/.schedule/" in operation.path and isinstance(operation, SetData))


@mutation(of_jobs)
def occurrence_recorded_without_its_message(patch: pytest.MonkeyPatch) -> None:
    put = cron.to_put

    def hasty(*args: object, **options: object) -> list[int]:
        due = put(*args, **options)  # type: ignore[arg-type]
        return [*due[:-2], due[-1]] if len(due) > 1 else due

    patch.setattr(scheduler, "to_put", hasty)
