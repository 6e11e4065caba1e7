"""The figures on the pages are those of the recorded run that the pages name."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parents[3]
RUN = json.loads((ROOT / "benchmarks" / "results" / "run.json").read_text())
DEEP = json.loads((ROOT / "benchmarks" / "results" / "deep.json").read_text())
README = ROOT / "README.md"
COMPARISON, PERFORMANCE, WHEN_NOT, BUNDLES = (
    ROOT / "docs" / f"{page}.md" for page in ("comparison", "performance", "when-not", "features/bundles")
)


def rate(case: str) -> str:
    """Return the messages per second, with three significant digits."""
    cases = RUN["cases"]
    found = case if case in cases else next(name for name in cases if name.startswith(case))
    return rounded(cases[found]["messages_per_second"])


def rounded(value: float) -> str:
    return f"{round(value, 3 - len(str(int(value)))):,.0f}"


def figure(case: str, name: str) -> float:
    return median(float(sample["figures"][name]) for sample in RUN["cases"][case]["samples"].values())


def ratio(case: str, peer: str) -> str:
    reached = next(bar["reached"] for bar in RUN["bars"] if bar["bar"].startswith(case) and peer in bar["bar"])
    return f"{reached:.3g}"


def requests(case: str) -> float:
    return float(RUN["cases"][case]["requests_per_message"])


def deep(run: str, figure: str) -> str:
    """Return a rate of the deep queue, with three significant digits."""
    return rounded(_of_deep(run, f"{figure}, messages/s"))


def heap(run: str) -> str:
    return f"{_of_deep(run, 'heap of the server for a waiting message, bytes'):.0f}"


def first(run: str) -> str:
    seconds = _of_deep(run, "a new session's first message, s")
    return f"{seconds * 1000:.0f} ms"


def _of_deep(run: str, figure: str) -> float:
    figures = next(deep_run["figures"] for deep_run in DEEP["runs"] if deep_run["command"].endswith(run))
    return float(figures[figure])


PUT, TAKE, LISTEN = (
    "put, a transaction each, bundles",
    "take + commit, a transaction each, bundles",
    "listener, a result each, bundles",
)
PUT_MANY, TAKE_MANY = "put_many(1,000), 1 task, bundles", "take_many(100), 1 task, bundles"
IDLE = "put → handler, 50 a second"
MILLION, MILLION_ALONE, FIVE_MILLIONS = (
    "--messages 1000000",
    "--messages 1000000 --bundle 1",
    "--messages 5000000",
)


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        (
            WHEN_NOT,
            f"takes {heap(FIVE_MILLIONS)} bytes of heap, and a new session gets the first after {first(FIVE_MILLIONS)}",
        ),
        (WHEN_NOT, f"put alone takes {heap(MILLION_ALONE)} bytes"),
        (WHEN_NOT, f"takes and commits {rate(TAKE)} per second, or puts {rate(PUT)} per second in separate"),
        (WHEN_NOT, f"puts {rate(PUT_MANY)} per second by `put_many`, and takes and commits {rate(TAKE_MANY)} by"),
        (WHEN_NOT, f"4 sessions move {rate('4 sessions')} messages per second, 16 move"),
        (WHEN_NOT, f"16 move {rate('16 sessions')}, and"),
        (WHEN_NOT, f"64 move {rate('64 sessions')}, because"),
        (WHEN_NOT, f"delivers a message {figure(IDLE, 'p50_ms'):.1f} ms after its put (p50)"),
        (WHEN_NOT, f"{ratio(IDLE, 'p50_ms')} times as long as one raw write"),
        (WHEN_NOT, f"Under light load, a message costs {requests(IDLE):.0f} requests"),
        (
            COMPARISON,
            f"{rate('SAQ on Redis: enqueue')} jobs per second and ran {rate('SAQ on Redis: no-op jobs')} no-op",
        ),
        (COMPARISON, f"put {rate(PUT)} messages per second and handled {rate(LISTEN)}"),
        (PERFORMANCE, f"`put_many` stores {rate(PUT_MANY)} instead of {rate('put_many(1,000), 1 task')} messages"),
        (PERFORMANCE, f"commit handles {rate(TAKE_MANY)} instead of {rate('take_many(100), 1 task')}"),
        (PERFORMANCE, f"Curator's background put | {ratio(PUT, 'Curator')} |"),
        (PERFORMANCE, f"the same | raw multis of 100 creates | {ratio(PUT, 'raw')} |"),
        (PERFORMANCE, f"by one task | raw multis of 100 creates | {ratio(PUT_MANY, 'raw')} |"),
        (
            PERFORMANCE,
            f"a transaction for each message | Curator's safe mode with 8 threads | {ratio(TAKE, 'Curator')}",
        ),
        (PERFORMANCE, f"kazoo's LockingQueue | {ratio(TAKE, 'kazoo')} |"),
        (PERFORMANCE, f"raw lock, read and commit, 200 at a time | {ratio(TAKE, 'raw')} |"),
        (PERFORMANCE, f"raw lock, read and commit, 100 at a time | {ratio(TAKE_MANY, 'in 100s')} |"),
        (
            PERFORMANCE,
            f"puts one result for each message | Curator's safe mode with 8 threads | {ratio(LISTEN, 'Curator')} |",
        ),
        (PERFORMANCE, f"no-op jobs of SAQ on Redis | {ratio(LISTEN, 'SAQ')} |"),
        (PERFORMANCE, f"default settings | Curator's safe mode with 8 threads | {ratio('async for', 'Curator')} |"),
        (PERFORMANCE, f"16 sessions of 32 tasks | one session | {ratio('16 sessions', '1 session')} |"),
        (PERFORMANCE, f"64 sessions of 32 tasks | one session | {ratio('64 sessions', '1 session')} |"),
        (PERFORMANCE, f"1,000 waiting | {ratio('take one, put one, 100,000', '1,000')} |"),
        (PERFORMANCE, f"raw write at the same pace | {ratio(IDLE, 'p50_ms')} |"),
        (PERFORMANCE, f"raw write at that pace | {ratio('put → handler, 16 idle', 'p50_ms')} |"),
        *(
            (
                PERFORMANCE,
                f"| {deep(run, 'put')} per second | {heap(run)} bytes | {first(run)} | {deep(run, 'drained')} per",
            )
            for run in (MILLION, MILLION_ALONE, FIVE_MILLIONS)
        ),
        (BUNDLES, f"one task | {rate('put_many(1,000), 1 task')} | {rate(PUT_MANY)} |"),
        (BUNDLES, f"| `put`, 256 tasks | {rate('put, a transaction each')} | {rate(PUT)} |"),
        (BUNDLES, f"commit, one task | {rate('take_many(100), 1 task')} | {rate(TAKE_MANY)} |"),
        (BUNDLES, f"commit, 256 tasks | {rate('take + commit, a transaction each')} | {rate(TAKE)} |"),
        (BUNDLES, f"| {rate('async for, default settings')} | {rate('async for, default settings, bundles')} |"),
        (BUNDLES, f"puts a result for each message | {rate('listener, a result each')} | {rate(LISTEN)} |"),
        (BUNDLES, f"| {rate('raw: multis of 100 creates')} | {rate('raw: multis of 8 bundles of 64')} |"),
        (
            BUNDLES,
            f"| {rate('raw: lock, read, commit in 200s')} | {rate('raw: lock, read, commit of bundles of 64')} |",
        ),
        (README, f"100 in a request | {ratio(PUT_MANY, 'raw')} |"),
        (
            README,
            f"a transaction for each message | Curator's safe mode with 8 threads | {ratio(TAKE, 'Curator')} |",
        ),
        (README, f"kazoo's LockingQueue | {ratio(TAKE, 'kazoo')} |"),
        (README, f"no-op jobs of SAQ on Redis | {ratio(LISTEN, 'SAQ')} |"),
        (README, f"default settings | Curator's safe mode with 8 threads | {ratio('async for', 'Curator')} |"),
        (README, f"takes {heap(MILLION)} bytes of heap if they were put together, and {heap(MILLION_ALONE)} bytes if"),
    ],
)
def test_figures_in_the_pages_match_the_recorded_run(page: Path, sentence: str) -> None:
    assert sentence in " ".join(page.read_text().split())
