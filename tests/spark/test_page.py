"""The page of an audit without records, with one queue, and with many queues with long names."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("pyspark")

from aiozkqueue.cli.audit.page import MOST_QUEUES, page
from aiozkqueue.cli.audit.plots import Column, columns
from aiozkqueue.spark.audit import Figures, Percentiles, Reason, Report, Span

START = datetime(2026, 3, 1, 8, tzinfo=UTC)
SPAN = timedelta(minutes=5)


def figures(ended: int) -> Figures:
    times = Percentiles(p50=0.02, p95=0.3, p99=400)
    return Figures(
        ended=ended,
        finished=ended,
        dead=0,
        other=0,
        first=START,
        last=START + 4 * SPAN,
        retried=0,
        retries=0,
        waiting=times,
        handling=times,
    )


def report(*queues: str, reasons: tuple[str, ...] = ()) -> Report:
    return Report(
        folder="file:/srv/audit",
        total=figures(100) if queues else None,
        queues={queue: figures(100) for queue in queues},
        reasons=[Reason(queue=queue, reason=reason, messages=3) for queue in queues for reason in reasons],
        spans=[Span(begin=START + n * SPAN, finished=25, dead=0, other=0) for n in range(4) if queues],
        span=SPAN,
    )


def shown(text: str) -> list[str]:
    """Return the texts in the plots that are visible without hovering."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", text)


def test_a_page_without_records_explains_how_to_keep_them_and_has_no_plot() -> None:
    text = page(report())
    assert "There are no records." in text
    assert "aiozkqueue configure QUEUE --history 7d" in text
    assert "<svg" not in text


def test_a_page_of_one_queue_shows_it_in_each_plot_and_labels_the_axes() -> None:
    text = page(report("orders"))
    assert shown(text).count("orders") == 3  # the busiest queue, and the two times
    assert "Messages that ended in each 5 min" in text
    assert text.count("the scale is logarithmic") == 2
    assert {"10 ms", "0.1 s", "1 s", "1 min", "10 min", "08:00"} <= set(shown(text))


def test_the_plots_show_the_busiest_of_fifty_queues_and_the_table_shows_all() -> None:
    names = [f"tenant-{n:02d}-orders" for n in range(50)]
    text = page(report(*names))
    assert f"The first {MOST_QUEUES} of 50." in text
    assert shown(text).count(names[MOST_QUEUES - 1]) == 3
    assert names[MOST_QUEUES] not in shown(text)
    assert all(f"<td>{name}</td>" in text for name in names)


def test_long_names_and_reasons_are_shortened_to_distinct_labels() -> None:
    names = [f"{'a-prefix-that-all-of-them-have-in-common-' * 2}{n}" for n in range(2)]
    found = shown(page(report(*names, reasons=("no such customer", "no such address"))))
    labels = [text for text in found if text.startswith("a-prefix")]
    assert {len(label) < 80 for label in labels} == {True}
    assert len(set(labels)) == 2 + 4  # each queue and each of its reasons
    assert sum(label.endswith("no such customer") for label in labels) == 2


@pytest.mark.parametrize(("most", "axis"), [(1, ["0", "1", "2"]), (2010, ["0", "1,500", "3,000"])])
def test_an_axis_ends_just_above_its_data_and_counts_whole_messages(most: int, axis: list[str]) -> None:
    drawn = columns("over time", ["finished"], [Column(START, [most], "")], SPAN)
    assert shown(drawn)[:3] == axis
