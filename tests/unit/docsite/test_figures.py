"""The figures on the pages equal those of the run that they name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RUN = json.loads((ROOT / "benchmarks" / "results" / "first.json").read_text())
README = ROOT / "README.md"
COMPARISON, PERFORMANCE, WHEN_NOT = (ROOT / "docs" / f"{page}.md" for page in ("comparison", "performance", "when-not"))


def rate(case: str) -> str:
    """Messages a second, three digits of it."""
    value = next(one["messages_per_second"] for name, one in RUN["cases"].items() if name.startswith(case))
    return f"{round(value, 3 - len(str(int(value)))):,.0f}"


def figure(case: str, name: str) -> float:
    return float(next(iter(RUN["cases"][case]["samples"].values()))["figures"][name])


def ratio(case: str, peer: str) -> str:
    reached = next(one["reached"] for one in RUN["bars"] if one["bar"].startswith(case) and peer in one["bar"])
    return f"{reached:.3g}"


def requests(case: str) -> float:
    return float(RUN["cases"][case]["requests_per_message"])


TAKE, PUT, LISTEN = "take + commit, a transaction each", "put, a transaction each", "listener, a result each"
FIRST = f"{figure('1,000,000 waiting in 64 shards', 'first_s') * 1000:.0f} ms"
IDLE = "put → handler, 50 a second"


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        (WHEN_NOT, f"first message after {FIRST}"),
        (WHEN_NOT, f"takes and commits {rate(TAKE)} a second, or puts {rate(PUT)} a second in separate"),
        (WHEN_NOT, f"4 sessions move {rate('4 sessions')} messages a second, 16 move {rate('16 sessions')}, and"),
        (WHEN_NOT, f"64 move {rate('64 sessions')}: each"),
        (WHEN_NOT, f"delivers a message {figure(IDLE, 'p50_ms'):.1f} ms after its put (p50)"),
        (WHEN_NOT, f"{ratio(IDLE, 'p50_ms')} times as long as one raw write"),
        (WHEN_NOT, f"Under light load, a message costs {requests(IDLE):.0f} requests"),
        (COMPARISON, f"{rate('SAQ on Redis: enqueue')} jobs enqueued and {rate('SAQ on Redis: no-op jobs')}"),
        (COMPARISON, f"to {rate(PUT)} and {rate(LISTEN)} here"),
        (PERFORMANCE, f"Curator's background put | {ratio(PUT, 'Curator')} |"),
        (PERFORMANCE, f"raw multis of 100 creates | {ratio(PUT, 'raw')} |"),
        (PERFORMANCE, f"Curator's safe mode with 8 threads | {ratio(TAKE, 'Curator')} |"),
        (PERFORMANCE, f"kazoo's LockingQueue | {ratio(TAKE, 'kazoo')} |"),
        (PERFORMANCE, f"raw lock, read and commit in 200s | {ratio(TAKE, 'raw')} |"),
        (PERFORMANCE, f"Curator's safe mode with 8 threads | {ratio(LISTEN, 'Curator')} |"),
        (PERFORMANCE, f"default settings, to the same | {ratio('async for', 'Curator')} |"),
        (PERFORMANCE, f"1,000 waiting | {ratio('take one, put one, 100,000', '1,000')} |"),
        (PERFORMANCE, f"first message | {FIRST} |"),
        (PERFORMANCE, f"raw write at the same pace | {ratio(IDLE, 'p50_ms')} |"),
        (PERFORMANCE, f"raw write at its pace | {ratio('put → handler, 16 idle', 'p50_ms')} |"),
        (PERFORMANCE, f"raw lock, read and commit in 100s | {ratio('take_many(100), 4 tasks', 'in 100s')} |"),
        (PERFORMANCE, f"by one task, to the same | {ratio('take_many(100), 1 task', 'in 100s')} |"),
        (PERFORMANCE, f"one batch at a time | {ratio('take_many(100), 1 task', 'one batch')} |"),
        (PERFORMANCE, f"16 sessions of 32 tasks, to one | {ratio('16 sessions', '1 session')} |"),
        (README, f"Curator's background put | {ratio(PUT, 'Curator')} |"),
        (README, f"Curator's safe mode with 8 threads | {ratio(TAKE, 'Curator')} |"),
        (README, f"kazoo's LockingQueue | {ratio(TAKE, 'kazoo')} |"),
        (README, f"Curator's safe mode with 8 threads | {ratio(LISTEN, 'Curator')} |"),
        (README, f"default settings, to the same | {ratio('async for', 'Curator')} |"),
    ],
)
def test_figures_in_the_pages_match_the_recorded_run(page: Path, sentence: str) -> None:
    assert sentence in " ".join(page.read_text().split())
