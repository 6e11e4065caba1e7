"""The report as one self-contained HTML page: no scripts, no network, and a dark and a light theme."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from aiozkqueue.cli.audit.plots import Bar, Column, Range, amount, bars, columns, duration, ranges, shortened

if TYPE_CHECKING:
    from aiozkqueue.spark.audit import Figures, Percentiles, Reason, Report

#: Maximum number of queues in a plot; the table has all.
MOST_QUEUES: Final = 12
_MOST_REASONS: Final = 12
#: For a plot of reasons, which are longer than names: pixels for the labels, and letters for the queue's name.
_REASONS: Final = 470
_LONGEST_QUEUE: Final = 18
KINDS: Final = ("finished", "dead", "other")
_NAMES: Final = {"finished": "finished", "dead": "dead letters", "other": "expired, cancelled, removed"}
#: The keys of a plot of ends by kind.
LEGEND: Final = "".join(f'<span><i class="{kind}"></i>{name}</span>' for kind, name in _NAMES.items())


def page(report: Report) -> str:
    """Return the page; it states if there are no records."""
    body = _nothing() if report.total is None else "".join(_sections(report, report.total))
    source = f'<p class="quiet">The records in <code>{escape(report.folder)}</code>; times are UTC.</p>'
    return document("Audit of queues", source + body)


def document(title: str, body: str) -> str:
    """Return a page with this title, and this HTML below it."""
    style = files("aiozkqueue.cli.audit").joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body><main><h1>{escape(title)}</h1>"
        f"{body}</main></body></html>\n"
    )


def _nothing() -> str:
    return (
        "<p>There are no records. A queue keeps them if it is configured to: "
        "<code>aiozkqueue configure QUEUE --history 7d</code></p>"
    )


def _sections(report: Report, total: Figures) -> Iterable[str]:
    yield _tiles(total)
    peak = max((span.finished + span.dead + span.other for span in report.spans), default=0)
    per = duration(report.span.total_seconds())
    yield section(
        "Throughput",
        f"Messages that ended in each {per}; up to {amount(peak / report.span.total_seconds())} per second.",
        columns("Messages that ended over time", KINDS, list(_columns(report)), report.span),
        LEGEND,
    )
    busiest = list(report.queues.items())[:MOST_QUEUES]
    more = f" The first {MOST_QUEUES} of {len(report.queues)}." if len(report.queues) > MOST_QUEUES else ""
    yield section(
        "Busiest queues",
        f"Messages that ended.{more}",
        bars(
            "Busiest queues", "finished", [Bar(name, figures.ended, amount(figures.ended)) for name, figures in busiest]
        ),
    )
    times = '<span><i class="p50"></i>p50</span><span><i class="p95"></i>p95</span><span><i class="p99"></i>p99</span>'
    for title, what, found in (
        (
            "Waiting",
            "From the put until the claim; the scale is logarithmic.",
            _ranges(busiest, "waiting"),
        ),
        ("Handling", "From the claim until the end; the scale is logarithmic.", _ranges(busiest, "handling")),
    ):
        if found:
            yield section(title, what, ranges(f"{title} time by queue", found), times)
    if report.reasons:
        most = report.reasons[:_MOST_REASONS]
        shown = [Bar(_reason(reason), reason.messages, amount(reason.messages)) for reason in most]
        yield section("Dead letters by reason", "", bars("Dead letters by reason", "dead", shown, labels=_REASONS))
        rows = [(reason.queue, reason.reason or "no reason", amount(reason.messages)) for reason in report.reasons]
        yield f"<details><summary>All</summary>{table(('Queue', 'Reason', 'Messages'), rows, texts=2)}</details>"
    yield (
        "<section><h2>All queues</h2>" + table(_COLUMNS, [_cells(*row) for row in report.queues.items()]) + "</section>"
    )


def _reason(reason: Reason) -> str:
    return f"{shortened(reason.queue, _LONGEST_QUEUE)}: {reason.reason or 'no reason'}"


def _tiles(total: Figures) -> str:
    shown: Mapping[str, str] = {
        "messages ended": amount(total.ended),
        "per second": amount(total.per_second),
        "finished": f"{100 * total.finished / total.ended:.1f} %",
        "dead letters": amount(total.dead),
        "retries": amount(total.retries),
        "waiting, p95": _time(total.waiting, "p95"),
        "handling, p95": _time(total.handling, "p95"),
    }
    return f'<p class="quiet">{when(total.first)} to {when(total.last)}</p>{tiles(shown)}'


def tiles(shown: Mapping[str, str]) -> str:
    """Return figures as tiles, by their names."""
    each = "".join(f"<div><dd>{escape(value)}</dd><dt>{escape(name)}</dt></div>" for name, value in shown.items())
    return f'<dl class="tiles">{each}</dl>'


def section(title: str, what: str, plot: str, legend: str = "") -> str:
    """Return a section with a plot; ``what`` explains it, and ``legend`` is the HTML of its keys."""
    explanation = f'<p class="quiet">{escape(what)}</p>' if what else ""
    keys = f'<p class="legend">{legend}</p>' if legend else ""
    return f'<section><h2>{escape(title)}</h2>{explanation}{keys}<div class="scroll">{plot}</div></section>'


def _columns(report: Report) -> Iterable[Column]:
    return (ends_column(span.begin, span.finished, span.dead, span.other) for span in report.spans)


def ends_column(begin: datetime, finished: int, dead: int, other: int) -> Column:
    """Return the column of a span of time, with its numbers in words."""
    values = (finished, dead, other)
    parts = ", ".join(f"{amount(value)} {_NAMES[kind]}" for kind, value in zip(KINDS, values, strict=True) if value)
    return Column(begin, values, f"{when(begin)}: {parts}")


def _ranges(queues: Sequence[tuple[str, Figures]], time: str) -> list[Range]:
    found = [(name, figures.waiting if time == "waiting" else figures.handling) for name, figures in queues]
    return [Range(name, part.p50, part.p95, part.p99) for name, part in found if part is not None]


_COLUMNS: Final = (
    "Queue",
    "Ended",
    "A second",
    "Finished",
    "Dead",
    "Other",
    "Retries",
    "Waiting p50",
    "p95",
    "p99",
    "Handling p50",
    "p95",
    "p99",
)


def _cells(name: str, figures: Figures) -> list[str]:
    counts = (figures.ended, figures.per_second, figures.finished, figures.dead, figures.other, figures.retries)
    times = [_time(part, which) for part in (figures.waiting, figures.handling) for which in ("p50", "p95", "p99")]
    return [name, *map(amount, counts), *times]


def _time(part: Percentiles | None, which: str) -> str:
    if part is None:
        return "–"  # noqa: RUF001 - how a table leaves a cell empty
    return duration({"p50": part.p50, "p95": part.p95, "p99": part.p99}[which])


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int = 1) -> str:
    """Return a table whose first columns are texts, and whose other columns are figures."""

    def line(kind: str, cells: Sequence[str]) -> str:
        return "".join(
            f"<{kind}{'' if number < texts else ' class=figure'}>{escape(cell)}</{kind}>"
            for number, cell in enumerate(cells)
        )

    body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{line("th", heads)}</tr></thead><tbody>{body}</tbody></table></div>'


def when(moment: datetime) -> str:
    """Return a moment for people, in UTC."""
    return moment.strftime("%Y-%m-%d %H:%M:%S")
