"""`aiozkqueue jobs`: what is put again and again, and when."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Literal

import typer

import aiozkqueue as zq
from aiozkqueue.cli import output
from aiozkqueue.cli.arguments import AsJson, QueueName
from aiozkqueue.cli.connection import Connection, connected
from aiozkqueue.cli.durations import TIME, parse_duration
from aiozkqueue.cli.exits import Exit
from aiozkqueue.cli.signals import draining
from aiozkqueue.schedule import Job, Jobs, Scheduler

_Name = Annotated[str, typer.Argument(metavar="NAME")]


@connected
async def list_(connection: Connection, as_json: AsJson = False) -> Exit:
    """Show the recurring jobs, and when each occurs next. Fails with 1 when there is none.

    [dim]aiozkqueue jobs list[/dim]
    """
    async with connection.open() as session:
        jobs = await Jobs(session).list()
    if as_json:
        for job in jobs:
            output.print_json(_record(job))
    elif jobs:
        output.print_table(
            ["name", "cron", "zone", "queue", "missed", "last", "next", "payload"],
            [
                (j.name, j.cron, j.zone, j.queue, j.missed, output.when(j.last), _next(j), output.preview(j.body))
                for j in jobs
            ],
        )
    return Exit.OK if jobs else Exit.NOTHING


@connected
async def add(
    connection: Connection,
    name: _Name,
    cron: Annotated[
        str, typer.Argument(metavar="CRON", help="Five fields, six with seconds before them, or such as @daily.")
    ],
    queue: QueueName,
    body: Annotated[str, typer.Argument(metavar="[BODY]", help="The payload.")] = "",
    zone: Annotated[str, typer.Option("--zone", "-z", help="The time zone that CRON is in.")] = "UTC",
    missed: Annotated[
        Literal["skip", "last", "all"], typer.Option(help="What to make up for when no scheduler ran.")
    ] = "last",
    limit: Annotated[int, typer.Option(min=1, help="So many at most, with --missed all.")] = 100,
    tolerance: Annotated[
        float, typer.Option(parser=parse_duration, metavar=TIME, help="What is later than that was missed.")
    ] = 60,
    as_json: AsJson = False,
) -> Exit:
    """Add a job: put BODY to QUEUE whenever CRON says so. It occurs while a scheduler runs somewhere.

    [dim]aiozkqueue jobs add nightly '0 3 * * *' reports '{"all": true}' --zone Europe/Berlin[/dim]
    """
    async with connection.open() as session:
        job = await Jobs(session).add(
            name, cron, queue, os.fsencode(body), zone=zone, missed=missed, limit=limit, tolerance=tolerance
        )
    _print(job, as_json=as_json)
    return Exit.OK


@connected
async def pause(connection: Connection, name: _Name, as_json: AsJson = False) -> Exit:
    """Let a job occur no more until it is resumed.

    [dim]aiozkqueue jobs pause nightly[/dim]
    """
    async with connection.open() as session:
        _print(await Jobs(session).pause(name), as_json=as_json)
    return Exit.OK


@connected
async def resume(connection: Connection, name: _Name, as_json: AsJson = False) -> Exit:
    """Let a paused job occur again, from now on.

    [dim]aiozkqueue jobs resume nightly[/dim]
    """
    async with connection.open() as session:
        _print(await Jobs(session).resume(name), as_json=as_json)
    return Exit.OK


@connected
async def remove(connection: Connection, name: _Name) -> Exit:
    """Remove a job. Fails with 1 when there is none of this name.

    [dim]aiozkqueue jobs remove nightly[/dim]
    """
    async with connection.open() as session:
        try:
            await Jobs(session).remove(name)
        except zq.NotFoundError as error:
            output.note(str(error))
            return Exit.NOTHING
    return Exit.OK


@connected
async def run(connection: Connection) -> Exit:
    """Schedule the jobs until a signal comes. Run it in several places: each occurrence is put once.

    [dim]aiozkqueue jobs run[/dim]
    """
    async with connection.open() as session:
        scheduler = Scheduler(session)
        with draining(scheduler.stop):
            await scheduler.run()
    return Exit.OK


def _print(job: Job, *, as_json: bool) -> None:
    if as_json:
        output.print_json(_record(job))
    else:
        sys.stdout.write(f"{job.name}: next {_next(job)}\n")


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
        "last": job.last.isoformat(),
        "next": job.next.isoformat() if job.next else None,
        "body": job.body.decode(errors="backslashreplace"),
    }
    if job.options:
        record["options"] = dict(job.options)
    return record
