"""`aiozkqueue report`: waiting and handling times, attempts, dead letters and throughput from a queue's history."""

from __future__ import annotations

import time
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from aiozkqueue.cli import bars, output
from aiozkqueue.cli.arguments import AsJson, LocalMoment
from aiozkqueue.cli.asked import AskedQueue, asks_queue
from aiozkqueue.cli.audit.plots import amount
from aiozkqueue.cli.connection import Connection, connected
from aiozkqueue.cli.exits import Exit
from aiozkqueue.cli.output import Json
from aiozkqueue.cli.records import note_nothing_ended
from aiozkqueue.cli.report.page import SHARES, page, reasons_of, time_of
from aiozkqueue.cli.times import in_utc
from aiozkqueue.operations.history import count_history
from aiozkqueue.operations.history_report import Summary
from aiozkqueue.session.internals import core_of

if TYPE_CHECKING:
    import aiozkqueue as zq
    from aiozkqueue.operations.history_report import Report

#: Records between two changes of the bar.
_STEP: Final = 500
_MOST_REASONS: Final = 10


@connected
@asks_queue
async def report(
    connection: Connection,
    queue: AskedQueue,
    since: LocalMoment = None,
    until: LocalMoment = None,
    day: Annotated[
        datetime | None,
        typer.Option(formats=["%Y-%m-%d"], metavar="YYYY-MM-DD", help="This day, in local time, instead of a range."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", dir_okay=False, help="Also write an HTML page with plots.")
    ] = None,
    as_json: AsJson = False,
) -> Exit:
    """Show times, attempts and dead letters from a queue's history.

    It shows percentiles of the waiting and handling times, and the throughput.

    Exit status 1: no message ended in this time, or the queue keeps no history.

    A queue keeps a history if it is configured to: [dim]aiozkqueue configure orders --history 7d[/dim]

    Examples:
    [dim]$ aiozkqueue report orders --day 2026-03-01
    $ aiozkqueue report orders --since 2026-03-01T08:00 --html orders.html[/dim]
    """
    if day is not None:
        if since is not None or until is not None:
            message = "--day cannot be combined with --since and --until"
            raise typer.BadParameter(message)
        since, until = day, day + timedelta(days=1)
    async with connection.open() as session:
        target = queue.of(session)
        if not await target.exists():
            await connection.note_absent(session, queue)
            return Exit.NOTHING
        found = await _read(session, target, in_utc(since), in_utc(until))
        if found is None:
            await note_nothing_ended(target, queue)
            return Exit.NOTHING
    if html is not None:
        html.write_text(page(found), encoding="utf-8")
    if as_json:
        output.print_json(_record(found))
    else:
        _print(found)
    if html is not None:
        output.note(f"the page with plots: {html}")
    return Exit.OK


async def _read(
    session: zq.QueueSession, queue: zq.Queue[bytes], since: datetime | None, until: datetime | None
) -> Report | None:
    """Read the records; after `bars.BAR_DELAY` seconds, show how many there are still to read."""
    summary = Summary(queue.name)
    start, bar = time.monotonic(), None
    with ExitStack() as stack:
        async for record in queue.history(since=since, until=until):
            summary.add(record)
            if summary.records % _STEP:
                continue
            if bar is None and time.monotonic() - start > bars.BAR_DELAY:
                total = await count_history(core_of(session).handle(queue.name), since=since, until=until)
                bar = stack.enter_context(bars.progress("reading records", total))
                bar.advance(summary.records)
            elif bar is not None:
                bar.advance(_STEP)
    return summary.report()


def _print(found: Report) -> None:
    title = f"{found.queue}: {output.when(found.first)} to {output.when(found.last)}"
    figures = {
        "ended": amount(found.ended),
        **{end.value: amount(number) for end, number in found.outcomes.items()},
        "per second": amount(found.per_second),
        "per second, at the peak": amount(found.peak),
        "retried": amount(found.retried),
        "retries": amount(found.retries),
    }
    output.print_table(["messages", "number"], list(figures.items()), title=title)
    times = {"waiting": found.waiting, "handling": found.handling}
    output.print_table(
        ["time", *SHARES], [(name, *(time_of(part, share) for share in SHARES)) for name, part in times.items()]
    )
    output.print_table(["attempts", "messages"], list(found.attempts.items()))
    if found.reasons:
        most = reasons_of(found)[:_MOST_REASONS]
        output.print_table(
            ["dead letters", "reason"], [(number, output.shortened(reason or "no reason")) for reason, number in most]
        )


def _record(found: Report) -> dict[str, Json]:
    return {
        "queue": found.queue,
        "first": found.first.isoformat(),
        "last": found.last.isoformat(),
        "ended": found.ended,
        "outcomes": {end.value: number for end, number in found.outcomes.items()},
        "per_second": round(found.per_second, 3),
        "peak_per_second": round(found.peak, 3),
        "retried": found.retried,
        "retries": found.retries,
        "attempts": {str(attempts): number for attempts, number in found.attempts.items()},
        "waiting": None if found.waiting is None else output.record_of(found.waiting),
        "handling": None if found.handling is None else output.record_of(found.handling),
        "dead_letters": [{"reason": reason, "messages": number} for reason, number in found.reasons],
        "more_reasons": found.more_reasons,
        "span": found.span.total_seconds(),
        "spans": list(map(output.record_of, found.spans)),
    }
