"""`aiozkqueue audit`: moves the records of ended messages to Parquet files, and reports figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from aiozkqueue.cli import output
from aiozkqueue.cli.arguments import AsJson, LocalMoment
from aiozkqueue.cli.audit.page import page
from aiozkqueue.cli.audit.plots import amount, duration
from aiozkqueue.cli.connection import Connection, with_connection
from aiozkqueue.cli.exits import Exit
from aiozkqueue.cli.output import Json
from aiozkqueue.cli.spark import LOCAL, Conf, Master, options_of, place, spark_session, watched
from aiozkqueue.cli.times import in_utc

if TYPE_CHECKING:
    from aiozkqueue.spark.audit import Figures, Moved, Percentiles, Report

#: In a local folder the page has a name that readers of the files ignore.
PAGE: Final = "_report.html"
_MOST_REASONS: Final = 10
_STEPS: Final = {
    "begin": "looking for records",
    "write": "writing files",
    "commit": "committing",
    "publish": "publishing files",
    "remove": "removing the written records",
    "end": "ending",
}


@with_connection
def audit(
    connection: Connection,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="DIR",
            help="A new folder, or the folder of earlier audits, at any location that Spark can write to.",
        ),
    ],
    queues: Annotated[
        list[str] | None, typer.Option("--queue", metavar="QUEUE", help="Only this queue; may be repeated.")
    ] = None,
    since: LocalMoment = None,
    until: LocalMoment = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", dir_okay=False, help=f"The HTML page. [dim]\\[default: {PAGE} in DIR][/dim]"),
    ] = None,
    as_json: AsJson = False,
    master: Master = LOCAL,
    conf: Conf = None,
) -> Exit:
    """Move the histories of queues to Parquet files and report on them.

    A queue keeps a history if it is configured to: [dim]aiozkqueue configure orders --history 7d[/dim]

    Each record is moved exactly once, into DIR/queue=…/day=…, even if the command is killed and run again.

    The report is a table or JSON, and an HTML page with plots. --since and --until limit it.

    Examples:
    [dim]$ aiozkqueue audit --to ./audit
    $ aiozkqueue audit --to ./audit --queue orders --since 2026-03-01 --json
    $ aiozkqueue audit --to s3a://bucket/audit --html report.html --master spark://h1:7077[/dim]
    """
    options, to = options_of(connection), place(to)
    with spark_session(master, conf) as spark:
        from aiozkqueue.spark.audit import move, report  # noqa: PLC0415 - only now is it known that Spark is there
        from aiozkqueue.spark.folder import Folder  # noqa: PLC0415 - so too

        with watched(spark, "audit") as bar:
            moved = move(spark, to, options, queues=queues, on_step=lambda step: bar.describe(_STEPS[step]))
            bar.describe("reading files")
            summary = report(spark, to, since=in_utc(since), until=in_utc(until), queues=queues)
        local = Folder(spark, to).local
    if html is None and local is not None:
        html = local / PAGE
    if html is not None:
        html.write_text(page(summary), encoding="utf-8")
    _print(moved, summary, html, as_json=as_json)
    return Exit.OK


def _print(moved: Moved, report: Report, html: Path | None, *, as_json: bool) -> None:
    if as_json:
        for record in _records(moved, report, html):
            output.print_json(record)
        return
    if moved.finished:
        output.note("an interrupted audit was finished first")
    output.note(f"{amount(moved.records)} records moved to {report.folder}")
    if report.total is not None:
        _print_tables(report, report.total)
    if html is not None:
        output.note(f"the report with plots: {html}")


def _print_tables(report: Report, total: Figures) -> None:
    columns = ["queue", "ended", "per second", "finished", "dead", "other", "retries"]
    columns += [f"{time} {which}" for time in ("waiting", "handling") for which in ("p50", "p95", "p99")]
    rows = [_row(name, figures) for name, figures in report.queues.items()]
    if len(rows) > 1:
        rows.append(_row("(all)", total))
    output.print_table(columns, rows, title=f"{output.when(total.first)} to {output.when(total.last)}")
    if report.reasons:
        output.print_table(
            ["queue", "dead letters", "reason"],
            [
                (reason.queue, reason.messages, output.shortened(reason.reason))
                for reason in report.reasons[:_MOST_REASONS]
            ],
        )


def _row(name: str, figures: Figures) -> tuple[object, ...]:
    times = [_time(part, which) for part in (figures.waiting, figures.handling) for which in ("p50", "p95", "p99")]
    return (
        name,
        figures.ended,
        amount(figures.per_second),
        figures.finished,
        figures.dead,
        figures.other,
        figures.retries,
        *times,
    )


def _time(part: Percentiles | None, which: str) -> str:
    return "" if part is None else duration(float(asdict(part)[which]))


def _records(moved: Moved, report: Report, html: Path | None) -> Iterator[dict[str, Json]]:
    """The output of ``--json``: one object per line, each with its kind."""
    yield {
        "kind": "audit",
        "folder": report.folder,
        "moved": moved.records,
        "finished_earlier": moved.finished,
        "html": None if html is None else str(html),
    }
    if report.total is not None:
        yield {"kind": "total", **_figures(report.total)}
    for name, figures in report.queues.items():
        yield {"kind": "queue", "queue": name, **_figures(figures)}
    for reason in report.reasons:
        yield {"kind": "dead-letters", **output.record_of(reason)}
    for span in report.spans:
        yield {"kind": "span", "seconds": report.span.total_seconds(), **output.record_of(span)}


def _figures(figures: Figures) -> dict[str, Json]:
    return {**output.record_of(figures), "per_second": round(figures.per_second, 3)}
