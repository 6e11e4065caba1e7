"""One seed gives one history, request by request, in any process, on any machine and at any time."""

from __future__ import annotations

import itertools
import logging
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.simulation.programs import feature_of
from tests.simulation.workload import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SEEDS = range(40)
#: Features with a program of their own, which the histories of the seeds do not have.
APART = ("bundles", "grouped_bundles", "staged_bundles", "streamed_bundles")
#: A program that repeats the histories in another process: in another folder, later and slower, and after other
#: simulations.
ELSEWHERE = """
import os, socket, time
from tests.simulation import test_repetition as here
os.getpid, socket.gethostname = lambda: {pid}, lambda: {host!r}
late = iter(range(10**9, 10**12, 7))
time.time = time.monotonic = time.perf_counter = lambda: float(next(late))
here.histories(range(1000, 1005))
print(*here.histories(here.SEEDS), sep="\\n")
"""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def expected() -> list[str]:
    """The histories of this process."""
    return histories(SEEDS)


def histories(seeds: range) -> list[str]:
    """Return every request of these histories, in order, with its fault: one line each."""
    lines: list[str] = []
    for seed in seeds:
        lines += requests(seed, rough=seed % 4 == 0, feature=feature_of(seed))
    for feature in APART:
        lines += requests(f"{feature} {seeds[0]}", rough=False, feature=feature)
    return lines


def requests(seed: int | str, *, rough: bool, feature: str | None) -> list[str]:
    """Return every request of a history."""
    trace: list[tuple[object, ...]] = []
    run(seed, rough=rough, feature=feature, trace=trace)
    return [f"SEED={seed}: {request!r}" for request in trace]


def assert_same(first: list[str], second: list[str]) -> None:
    """Compare two histories. Raises: AssertionError, with the first request that differs."""
    for number, (former, latter) in enumerate(itertools.zip_longest(first, second)):
        assert former == latter, f"request {number} differs:\n  {former}\n  {latter}"


def test_one_seed_gives_the_same_history_in_this_process(expected: list[str]) -> None:
    assert_same(expected, histories(SEEDS))


@pytest.mark.parametrize(
    ("hash_seed", "pid", "host"),
    [pytest.param("1", 7, "a", marks=pytest.mark.slow), ("2", 4_000_000, "a.host.with.a.longer.name")],
)
@pytest.mark.timeout(300)
def test_one_seed_gives_the_same_history_in_any_other_process(
    expected: list[str], hash_seed: str, pid: int, host: str, tmp_path: Path
) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    program = ELSEWHERE.format(pid=pid, host=host)
    printed = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=tmp_path, capture_output=True, check=True
    )
    assert_same(expected, printed.stdout.decode().splitlines())
