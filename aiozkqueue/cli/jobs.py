"""`aiozkqueue jobs`: recurring jobs."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Literal

import typer

from aiozkqueue.cli import output
from aiozkqueue.cli.arguments import AsJson, LogConfig, LogFormat, LogLevel, QueueName
from aiozkqueue.cli.connection import Connection, connected
from aiozkqueue.cli.exits import Exit
from aiozkqueue.cli.logs import start_logs
from aiozkqueue.cli.signals import drain_on_signals
from aiozkqueue.cli.times import TIME, parse_duration
from aiozkqueue.errors import NotFoundError
from aiozkqueue.schedule import Job, Jobs, Scheduler
from aiozkqueue.schedule.overdue import findings_about, overdue_among

_Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the job.")]


@connected
async def list_(connection: Connection, as_json: AsJson = False) -> Exit:
    """List recurring jobs with their last and next occurrences; mark jobs that no scheduler seems to serve.

    The time of the servers decides which jobs are overdue. Exit status 1: there are none.

    Example:
    [dim]$ aiozkqueue jobs list[/dim]
    """
    async with connection.open() as session:
        jobs = await Jobs(session).list()
        overdue = await overdue_among(session, jobs)
    if as_json:
        for job in jobs:
            output.print_json(_record(job) | {"overdue": job.name in overdue})
    elif jobs:
        output.print_table(
            ["name", "cron", "zone", "queue", "missed", "last", "next", "payload"],
            [
                (
                    j.name,
                    j.cron,
                    j.zone,
                    j.queue,
                    j.missed,
                    output.when(j.last) or "never",
                    _next(j),
                    output.preview(j.body),
                )
                for j in jobs
            ],
        )
    for finding in findings_about(overdue):
        output.note(f"{finding.text}: {finding.advice}")
    return output.status_of_list(jobs, f"there are no jobs below {connection.root}")


@connected
async def add(
    connection: Connection,
    name: _Name,
    cron: Annotated[
        str, typer.Argument(metavar="CRON", help="Five fields, six with leading seconds, or a name such as @daily.")
    ],
    queue: QueueName,
    body: Annotated[str, typer.Argument(metavar="BODY", help="The payload.")] = "",
    zone: Annotated[str, typer.Option("--zone", "-z", help="The time zone of CRON.")] = "UTC",
    missed: Annotated[
        Literal["skip", "last", "all"],
        typer.Option(help="Which missed occurrences to put after a time without a scheduler."),
    ] = "last",
    limit: Annotated[int, typer.Option(min=1, help="The maximum number that --missed all puts.")] = 100,
    tolerance: Annotated[
        float,
        typer.Option(
            parser=parse_duration, metavar=TIME, help="An occurrence that is later than this counts as missed."
        ),
    ] = 60,
    as_json: AsJson = False,
) -> Exit:
    """Add a job that puts BODY to QUEUE at the times of CRON while a scheduler runs.

    Example:
    [dim]$ aiozkqueue jobs add nightly '0 3 * * *' reports '{"all": true}' --zone Europe/Berlin[/dim]
    """
    async with connection.open() as session:
        job = await Jobs(session).add(
            name, cron, queue, os.fsencode(body), zone=zone, missed=missed, limit=limit, tolerance=tolerance
        )
    _print(job, as_json=as_json)
    return Exit.OK


@connected
async def pause(connection: Connection, name: _Name, as_json: AsJson = False) -> Exit:
    """Pause a job until it is resumed.

    Example:
    [dim]$ aiozkqueue jobs pause nightly[/dim]
    """
    async with connection.open() as session:
        _print(await Jobs(session).pause(name), as_json=as_json)
    return Exit.OK


@connected
async def resume(connection: Connection, name: _Name, as_json: AsJson = False) -> Exit:
    """Resume a paused job.

    Example:
    [dim]$ aiozkqueue jobs resume nightly[/dim]
    """
    async with connection.open() as session:
        _print(await Jobs(session).resume(name), as_json=as_json)
    return Exit.OK


@connected
async def remove(connection: Connection, name: _Name, as_json: AsJson = False) -> Exit:
    """Remove a job.

    Exit status 1: the job does not exist.

    Example:
    [dim]$ aiozkqueue jobs remove nightly[/dim]
    """
    async with connection.open() as session:
        try:
            await Jobs(session).remove(name)
        except NotFoundError as error:
            output.note(str(error))
            return Exit.NOTHING
    if as_json:
        output.print_json({"name": name, "removed": True})
    else:
        output.note(f"job {name!r} is removed; messages that it has put stay in its queue")
    return Exit.OK


@connected
async def run(
    connection: Connection, log_level: LogLevel = "info", log_format: LogFormat = "text", log_config: LogConfig = None
) -> Exit:
    """Run a scheduler until a signal arrives; several may run at the same time.

    Example:
    [dim]$ aiozkqueue jobs run[/dim]
    """
    from aiozkqueue.worker import Announced  # noqa: PLC0415 - the other commands do not need it

    start_logs(log_level, log_format, log_config)
    async with connection.open() as session:
        scheduler = Scheduler(session)
        drain_on_signals(scheduler.stop)
        await Announced(scheduler).run()
    return Exit.OK


def _print(job: Job, *, as_json: bool) -> None:
    if as_json:
        output.print_json(_record(job))
    else:
        sys.stdout.write(f"{job.name}: {'' if job.paused else 'next '}{_next(job)}\n")


def _next(job: Job) -> str:
    return "paused" if job.paused else output.when(job.next)


def _record(job: Job) -> dict[str, output.Json]:
    record: dict[str, output.Json] = {
        "name": job.name,
        "cron": job.cron,
        "zone": job.zone,
        "queue": job.queue,
        "missed": job.missed,
        "limit": job.limit,
        "tolerance": job.tolerance,
        "paused": job.paused,
        "last": job.last.isoformat() if job.last else None,
        "next": job.next.isoformat() if job.next else None,
        "body": job.body.decode(errors="backslashreplace"),
    }
    if job.options:
        record["options"] = dict(job.options)
    return record
