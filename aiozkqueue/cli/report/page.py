"""The report of a history as one self-contained HTML page: no scripts, no network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiozkqueue.cli.audit.page import KINDS, LEGEND, document, ends_column, section, table, tiles, when
from aiozkqueue.cli.audit.plots import Bar, Range, amount, bars, columns, duration, ranges
from aiozkqueue.layout import End

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiozkqueue.operations.history_report import Percentiles, Report

#: Maximum number of reasons in the plot; the table has all.
_MOST_REASONS: Final = 12
#: Pixels for the labels of reasons, which are longer than names.
_REASONS: Final = 470
SHARES: Final = ("p50", "p90", "p95", "p99")


def page(report: Report) -> str:
    """Return the page."""
    return document(f"Queue {report.queue}", "".join(_sections(report)))


def _sections(report: Report) -> Iterator[str]:
    yield f'<p class="quiet">Messages that ended from {when(report.first)} to {when(report.last)}; times are UTC.</p>'
    shown = {
        "messages ended": amount(report.ended),
        "per second": amount(report.per_second),
        "finished": f"{100 * report.outcomes.get(End.FINISHED, 0) / report.ended:.1f} %",
        "dead letters": amount(report.outcomes.get(End.DEAD, 0)),
        "retries": amount(report.retries),
        "waiting, p95": time_of(report.waiting, "p95"),
        "handling, p95": time_of(report.handling, "p95"),
    }
    yield tiles(shown)
    per = duration(report.span.total_seconds())
    spans = [ends_column(span.begin, span.finished, span.dead, span.other) for span in report.spans]
    yield section(
        "Throughput",
        f"Messages that ended in each {per}; up to {amount(report.peak)} per second.",
        columns("Messages that ended over time", KINDS, spans, report.span),
        LEGEND,
    )
    yield from _times(report)
    tried = [Bar(str(attempts), number, amount(number)) for attempts, number in report.attempts.items()]
    yield section("Attempts", "Messages by the number of their attempts.", bars("Attempts", "finished", tried))
    if report.reasons:
        most = [Bar(reason or "no reason", number, amount(number)) for reason, number in report.reasons[:_MOST_REASONS]]
        yield section("Dead letters by reason", "", bars("Dead letters by reason", "dead", most, labels=_REASONS))
        rows = [(reason or "no reason", amount(number)) for reason, number in reasons_of(report)]
        yield f"<details><summary>All</summary>{table(('Reason', 'Messages'), rows)}</details>"
    ends = [(end.value, amount(number)) for end, number in report.outcomes.items()]
    yield f"<section><h2>Outcomes</h2>{table(('Outcome', 'Messages'), ends)}</section>"


def _times(report: Report) -> Iterator[str]:
    found = {"waiting": report.waiting, "handling": report.handling}
    known = [Range(name, part.p50, part.p95, part.p99) for name, part in found.items() if part is not None]
    if not known:
        return
    keys = '<span><i class="p50"></i>p50</span><span><i class="p95"></i>p95</span><span><i class="p99"></i>p99</span>'
    what = "Waiting: from the put until the claim. Handling: from the claim until the end. The scale is logarithmic."
    yield section("Times", what, ranges("Waiting and handling time", known), keys)
    rows = [(name, *(time_of(part, share) for share in SHARES)) for name, part in found.items()]
    yield table(("", *SHARES), rows)


def time_of(part: Percentiles | None, share: str) -> str:
    """Return one of the percentiles for people."""
    if part is None:
        return "–"  # noqa: RUF001 - how a table leaves a cell empty
    return duration({"p50": part.p50, "p90": part.p90, "p95": part.p95, "p99": part.p99}[share])


def reasons_of(report: Report) -> list[tuple[str, int]]:
    """Return the reasons with their numbers, and the rest as one."""
    more = [("(more reasons)", report.more_reasons)] if report.more_reasons else []
    return [*report.reasons, *more]
