"""`aiozkqueue load` and `unload`: files into queues and queues into files, through Spark."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from aiozkqueue.batches.staging import BatchWriter
from aiozkqueue.cli import bars, output
from aiozkqueue.cli.arguments import AsJson, QueueName
from aiozkqueue.cli.connection import Connection, with_connection
from aiozkqueue.cli.exits import Exit
from aiozkqueue.cli.spark import ELSEWHERE, LOCAL, Conf, Master, options_of, place, spark_session, watched
from aiozkqueue.cli.times import TIME, parse_duration
from aiozkqueue.layout import check_queue_name
from aiozkqueue.operations.batch_writers import name_of_write
from aiozkqueue.session.internals import core_of

_PATTERN: Final = re.compile(r"[*?\[{]")


@with_connection
def load(
    connection: Connection,
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="Files, folders or patterns, of one kind.")],
    queue: Annotated[str, typer.Option("--queue", metavar="QUEUE", help="The queue to put to.")],
    kind: Annotated[
        Literal["parquet", "csv", "json"] | None,
        typer.Option("--format", help="The format of the files. [dim]\\[default: by their names][/dim]"),
    ] = None,
    infer: Annotated[
        bool, typer.Option("--infer-types", help="Detect numbers and times in CSV; without it, they stay text.")
    ] = False,
    write_id: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="The name of the load. Running it again under the same name puts no row twice."
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(parser=parse_duration, metavar=TIME, help="How long to wait for capacity in a bounded queue."),
    ] = 60,
    as_json: AsJson = False,
    master: Master = LOCAL,
    conf: Conf = None,
) -> Exit:
    """Put each row of Parquet, CSV (with a header) or JSON-lines files into a queue.

    The column body is the payload, and the columns key, group, priority, headers, tags, delay, at and ttl are its
    options. Without a column body, the payload is a JSON object of all columns, or the unchanged line of a JSON-lines
    file. All rows become visible together at the end. If it is killed, run it again with the same --write-id to
    continue.

    Examples:
    [dim]$ aiozkqueue load orders.parquet --queue orders
    $ aiozkqueue load 2026-03-*.csv --queue orders --infer-types
    $ aiozkqueue load events.jsonl.gz --queue events --write-id 2026-03-01 --json[/dim]
    """
    plain = [file for file in files if not ELSEWHERE.match(file) and not _PATTERN.search(file)]
    missing = [file for file in plain if not Path(file).exists()]
    if missing:
        msg = f"there is no file {missing[0]!r}"
        raise typer.BadParameter(msg, param_hint="FILE")
    if asyncio.run(_is_complete(connection, queue, write_id)):
        output.note(f"write {write_id!r} was already complete")
        output.print_count("loaded", 0, queue, as_json=as_json)
        return Exit.OK
    options = options_of(connection) | {"queue": queue, "putTimeout": str(timeout)}
    if write_id is not None:
        options["writeId"] = write_id
    with spark_session(master, conf) as spark:
        from aiozkqueue.spark.transfer import Kind, load  # noqa: PLC0415 - needs Spark, which is optional

        with watched(spark, f"load {queue}"):
            rows = load(spark, list(map(place, files)), options, kind=None if kind is None else Kind(kind), infer=infer)
    output.print_count("loaded", rows, queue, as_json=as_json)
    return Exit.OK if rows else Exit.NOTHING


@with_connection
def unload(
    connection: Connection,
    queue: QueueName,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="DIR",
            help="A new folder, or the folder of earlier unloads, at any location that Spark can write to.",
        ),
    ],
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMNS", help="Decode payloads, which are JSON objects, into columns, e.g. 'id int, name string'."
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Fail on a payload that does not decode; without it, the payload goes to the column _corrupt_record.",
        ),
    ] = False,
    batch: Annotated[int, typer.Option(min=1, metavar="MESSAGES", help="The number of messages per batch.")] = 20_000,
    as_json: AsJson = False,
    master: Master = LOCAL,
    conf: Conf = None,
) -> Exit:
    """Move the messages of a queue to Parquet files.

    Takes the messages that are waiting when it starts, and acknowledges each only when it is written. If it is killed,
    run it again with the same DIR: no message is lost or duplicated. Until then it holds messages, which
    [dim]aiozkqueue ledgers list QUEUE[/dim] shows.

    A paused queue keeps its messages. Exit status 1: no message was unloaded.

    Examples:
    [dim]$ aiozkqueue unload orders --to ./orders
    $ aiozkqueue unload orders --to ./orders --schema 'id int, article string' --json[/dim]
    """
    depth = asyncio.run(_depth(connection, queue))
    options = options_of(connection) | {"queue": queue, "maxOffsetsPerTrigger": str(batch)}
    if strict:
        options["mode"] = "FAILFAST"
    with spark_session(master, conf) as spark:
        from aiozkqueue.spark.transfer import unload  # noqa: PLC0415 - needs Spark, which is optional

        with bars.progress(f"unload {queue}", depth) as bar:
            done = unload(spark, place(to), options, schema=schema, on_batch=bar.advance)
    if done.resumed:
        output.note("an interrupted unload was continued")
    if done.paused:
        output.note(f"queue {queue!r} is paused, so its waiting messages stay: resume it (aiozkqueue resume {queue})")
    output.print_count("unloaded", done.messages, queue, as_json=as_json)
    return Exit.OK if done.messages else Exit.NOTHING


async def _is_complete(connection: Connection, queue: str, write_id: str | None) -> bool:
    """Whether a load with this name is complete. It connects before Spark starts: an error does not wait for Spark."""
    async with connection.open() as session:
        if write_id is None:
            return False
        check_queue_name(queue)
        return await BatchWriter(core_of(session).handle(queue), name_of_write(write_id)).is_complete(0)


async def _depth(connection: Connection, queue: str) -> int:
    """Return the number of messages. It is called before Spark starts, so that an error does not wait for Spark.

    Raises: CommandFailedError: the queue does not exist.
    """
    async with connection.open_queue(queue) as target:
        return await target.size()
