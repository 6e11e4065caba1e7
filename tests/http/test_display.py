"""How the dashboard displays figures, payloads, reasons and times; no server is needed."""

from __future__ import annotations

import asyncio
import time

import pytest

from aiozkqueue.http.core import shared_readings
from aiozkqueue.http.core.shared_readings import SharedReadings
from aiozkqueue.http.dashboard.readings.figures import OLD, figures_of
from aiozkqueue.http.dashboard.readings.letters import kind_of
from aiozkqueue.http.dashboard.readings.payloads import MOST, display
from aiozkqueue.http.dashboard.readings.times import times_of
from aiozkqueue.layout import End, HistoryRecord
from aiozkqueue.sampling import Rates, Sample

EMPTY = Sample(1000.0, 0, 0, 0, 0, 0, 0, 0, None, paused=False, max_size=None)
STILL = Rates(0.0, 0.0)


@pytest.mark.parametrize(
    ("sample", "signs"),
    [
        (EMPTY, ()),
        (EMPTY._replace(size=3), ("no consumers",)),
        (EMPTY._replace(size=3, consumers=1), ()),
        (EMPTY._replace(size=3, consumers=1, oldest=1000.0 - OLD), ("old",)),
        (EMPTY._replace(size=3, scheduled=3), ()),
        (EMPTY._replace(size=3, consumers=1, max_size=3), ("full",)),
        (EMPTY._replace(paused=True), ("paused",)),
        (EMPTY._replace(dead=1), ("dead letters",)),
    ],
)
def test_a_queue_needs_attention_for_a_reason(sample: Sample, signs: tuple[str, ...]) -> None:
    assert figures_of("q", sample, STILL, 1000.0).signs == signs


def test_an_empty_queue_without_traffic_is_idle() -> None:
    assert figures_of("q", EMPTY, STILL, 1000.0).idle
    assert not figures_of("q", EMPTY, Rates(0.1, 0.1), 1000.0).idle
    assert not figures_of("q", EMPTY._replace(size=1), STILL, 1000.0).idle


def test_the_time_to_drain_is_the_backlog_divided_by_the_difference_of_the_rates() -> None:
    backlog = EMPTY._replace(size=120, consumers=1)
    assert figures_of("q", backlog, Rates(1.0, 3.0), 1000.0).drain == 60.0
    assert figures_of("q", backlog, Rates(3.0, 3.0), 1000.0).drain is None
    growing = figures_of("q", backlog, Rates(3.0, 1.0), 1000.0)
    assert (growing.drain, growing.grows) == (None, True)


def test_json_is_indented_and_highlighted_and_everything_is_escaped() -> None:
    shown = display(b'{"a<b>": "x&y", "n": -1.5e3, "ok": true, "list": [null]}')
    assert shown.kind == "JSON"
    assert (
        '<span class="json-key">&#34;a&lt;b&gt;&#34;</span>: <span class="json-text">&#34;x&amp;y&#34;</span>'
        in shown.shown
    )
    assert '<span class="json-figure">-1500.0</span>' in shown.shown
    assert '<span class="json-word">null</span>' in shown.shown
    assert "<b>" not in shown.shown


def test_a_payload_that_is_not_json_is_text_or_a_hex_dump() -> None:
    text = display("<script>é".encode())
    assert (text.kind, str(text.shown)) == ("text", "&lt;script&gt;é")
    dump = display(b"\x00\xff<a>")
    assert dump.kind == "bytes"
    assert "00 ff 3c 61 3e" in dump.shown
    assert "..&lt;a&gt;" in dump.shown
    long = display(b'"' + b"\xc3\xa9" * MOST + b'"')
    assert (long.kind, long.cut, long.size) == ("text", True, 2 * MOST + 2)
    assert len(long.shown) < MOST


def test_json_that_no_page_or_number_can_hold_is_shown_as_it_is_written() -> None:
    half = display(rb'{"half": "\ud800", "whole": "\ud83d\ude00"}')
    assert half.kind == "JSON"
    assert r"\ud800" in half.shown
    assert "\U0001f600" in half.shown
    assert half.shown.encode()
    huge = display(b'{"n": 1e400}')
    assert (huge.kind, huge.shown) == ("text", "{&#34;n&#34;: 1e400}")


def test_a_payload_of_many_marks_is_shown_in_a_short_time() -> None:
    begun = time.thread_time()
    assert display(b"[" + b",".join([b'{"a":1}'] * 8000) + b"]").size > MOST // 2
    assert display(b"[" * 60_000).kind == "text"
    assert time.thread_time() - begun < 0.5


@pytest.mark.parametrize(
    "reasons",
    [
        ("ValueError: customer 17 has no address", "ValueError: customer 4,711 has no address"),
        ("no user 'ann'", "no user 'bob'"),
        ("job 3f2a-77 failed at 0x7f9d05be6f10", "job 99-ab1 failed at 0x1"),
    ],
)
def test_reasons_that_differ_only_in_numbers_and_names_are_grouped(reasons: tuple[str, str]) -> None:
    assert kind_of(reasons[0]) == kind_of(reasons[1]) != kind_of("another reason")


def test_the_times_of_messages_are_the_median_and_the_95th_percentile() -> None:
    records = [
        HistoryRecord(id=f"m{n}", ended=10_000 + n, outcome=End.FINISHED, put=0, claimed=n * 1000)
        for n in range(1, 101)
    ]
    times = times_of([*records, HistoryRecord(id="x", ended=5, outcome=End.CANCELLED, put=0)])
    assert times.number == 100
    assert times.wait is not None
    assert (times.wait.p50, times.wait.p95) == pytest.approx((50.0, 95.0), rel=0.001)
    assert times_of([]).wait is None


# -- shared readings


async def test_visitors_share_a_reading_while_it_is_made_and_while_it_is_fresh() -> None:
    readings, made = SharedReadings(), 0

    async def read() -> int:
        nonlocal made
        made += 1
        await asyncio.sleep(0)
        return made

    assert await asyncio.gather(*(readings.get(("a", "q"), read) for _ in range(50))) == [1] * 50
    assert await readings.get(("a", "q"), read) == 1
    assert await readings.get(("b", "q"), read) == 2
    readings.forget("q")
    assert await readings.get(("a", "q"), read) == 3
    await readings.close()


async def test_a_page_does_not_wait_for_a_long_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_readings, "READING_TIMEOUT", 0.01)
    readings, ready = SharedReadings(), asyncio.Event()

    async def read() -> str:
        await ready.wait()
        return "read"

    assert await readings.get_or_previous(("a",), read) is None
    ready.set()
    assert await readings.get(("a",), read) == "read"
    assert await readings.get_or_previous(("a",), read) == "read"
    await readings.close()


async def test_a_page_shows_the_previous_reading_while_the_next_one_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_readings, "READING_TIMEOUT", 0.01)
    monkeypatch.setattr(shared_readings, "FRESH", 0.0)
    monkeypatch.setattr(shared_readings, "SHARE", 0)
    readings, ready, values = SharedReadings(), asyncio.Event(), iter(["old", "new", "new", "new"])
    ready.set()

    async def read() -> str:
        await ready.wait()
        return next(values)

    assert await readings.get_any(("a",), read) == "old"
    ready.clear()
    assert await readings.get_any(("a",), read) == "old"
    ready.set()
    await asyncio.sleep(0.01)
    assert await readings.get_any(("a",), read) == "new"
    await readings.close()


async def test_a_failed_reading_is_reported_to_each_visitor_and_made_again() -> None:
    readings, results = SharedReadings(), iter([ValueError("one"), ValueError("two")])

    async def read() -> None:
        await asyncio.sleep(0)
        raise next(results)

    for text in ("one", "two"):
        with pytest.raises(ValueError, match=text):
            await readings.get(("a",), read)


async def test_readings_that_no_visitor_looks_at_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_readings, "KEPT", 4)
    readings = SharedReadings()

    async def read() -> int:
        return 1

    for number in range(20):
        await readings.get((number,), read)
    assert len(readings) <= 5


async def test_a_page_shows_no_reading_that_visitors_have_not_looked_at_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_readings, "READING_TIMEOUT", 0.01)
    monkeypatch.setattr(shared_readings, "FRESH", 0.0)
    monkeypatch.setattr(shared_readings, "SHARE", 0)
    monkeypatch.setattr(shared_readings, "UNUSED", 0.05)
    readings, ready, values = SharedReadings(), asyncio.Event(), iter(["yesterday", "today", "tomorrow"])

    async def read() -> str:
        await ready.wait()
        return next(values)

    ready.set()
    assert await readings.get(("a",), read) == "yesterday"
    await asyncio.sleep(0.1)
    ready.clear()
    assert await readings.get_or_previous(("a",), read) is None
    ready.set()
    assert await readings.get(("a",), read) == "today"
    await asyncio.sleep(0.1)
    asyncio.get_running_loop().call_later(0.05, ready.set)
    ready.clear()
    assert await readings.get_any(("a",), read) == "tomorrow"
    await readings.close()
