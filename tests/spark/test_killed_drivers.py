"""Real drivers that are killed at every step of a micro-batch, or that continue after another driver has replaced them.

A driver runs one query for each step, and is killed when all queries have halted at their steps. The next driver
continues all queries, and is killed when each query has reached its next step.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.spark.local import PROJECT, environment
from tests.spark.stepping import ENDED, GO, STEP, STEPS, WAITS, pipe
from tests.spark.test_batch import drained, put
from tests.spark.test_stream import left

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

#: Seconds within which a query must reach its step, even on a busy machine.
PATIENCE = 300


class Query:
    """A query that drains a queue into another."""

    def __init__(self, servers: dict[str, str], folder: Path, name: str) -> None:
        self.root = f"{servers['root']}/{name}"
        self._servers = {"hosts": servers["hosts"], "root": self.root}
        self.orders = {**self._servers, "queue": "orders"}
        self.out = {**self._servers, "queue": "out"}
        self._folder = folder / name
        self._folder.mkdir()

    def at(self, step: str) -> None:
        """Have the query halt at this step in the next driver."""
        (self._folder / STEP).write_text(step)
        (self._folder / WAITS).unlink(missing_ok=True)

    def wait(self, driver: subprocess.Popen[str]) -> None:
        """Wait until the query has reached its step."""
        _wait(driver, self._folder / WAITS, self._folder / ENDED)
        assert not (self._folder / ENDED).exists(), (self._folder / ENDED).read_text()

    def end(self, driver: subprocess.Popen[str]) -> str:
        """Let the query continue, and return how it ends."""
        (self._folder / GO).touch()
        _wait(driver, self._folder / ENDED)
        return (self._folder / ENDED).read_text()

    def go_on(self, spark: SparkSession) -> None:
        """Run the query in this process until it ends."""
        assert pipe(spark, self._servers, self._folder, "aiozkqueue").awaitTermination(PATIENCE)


def _wait(driver: subprocess.Popen[str], *files: Path) -> None:
    """Wait until one of these files exists."""
    deadline = time.monotonic() + PATIENCE
    while not any(file.exists() for file in files):
        assert driver.poll() is None, f"the driver has ended with {driver.returncode}"
        assert time.monotonic() < deadline, f"{files[0]} does not exist"
        time.sleep(0.05)


class Drivers:
    """Starts drivers, each in a separate process group."""

    def __init__(self, hosts: str, folder: Path, java: str) -> None:
        self._command = [sys.executable, "-m", "tests.spark.stepping", hosts, str(folder)]
        self._environment = {**os.environ, **environment(java)}
        self._started: list[subprocess.Popen[str]] = []

    def start(self) -> subprocess.Popen[str]:
        driver = subprocess.Popen(
            self._command, cwd=PROJECT, env=self._environment, stdin=subprocess.PIPE, text=True, process_group=0
        )
        self._started.append(driver)
        return driver

    def kill(self) -> None:
        for driver in self._started:
            if driver.poll() is None:
                kill(driver)


def run(driver: subprocess.Popen[str], *queries: Query) -> None:
    """Have a driver start the queries one after another, and wait until each has reached its step."""
    assert driver.stdin is not None
    for query in queries:
        print(query.root, file=driver.stdin, flush=True)
        query.wait(driver)


def kill(driver: subprocess.Popen[str]) -> None:
    """Kill a driver with its JVM."""
    assert driver.poll() is None
    os.killpg(driver.pid, signal.SIGKILL)
    driver.communicate()


@pytest.fixture
def drivers(zookeeper: str, tmp_path: Path, spark_java: str) -> Iterator[Drivers]:
    drivers = Drivers(zookeeper, tmp_path, spark_java)
    yield drivers
    drivers.kill()


def test_drivers_killed_at_any_step_lose_and_duplicate_nothing_and_a_zombie_changes_nothing(
    spark: SparkSession, options: dict[str, str], drivers: Drivers, tmp_path: Path
) -> None:
    first, second = drivers.start(), drivers.start()
    queries = [Query(options, tmp_path, f"killed-{number}") for number in range(len(STEPS))]
    bodies = [b"%d" % n for n in range(6)]
    for query, step in zip(queries, STEPS, strict=True):
        put(query.orders, *bodies)
        query.at(step)
    run(first, *queries)
    kill(first)
    seen = {query: drained(query.out) for query in queries}  # messages that consumers have taken must not come again
    for query, step in zip(queries, [*STEPS[1:], STEPS[0]], strict=True):
        query.at(step)
    run(second, *queries)

    zombie = Query(options, tmp_path, "zombie")
    put(zombie.orders, *bodies)
    zombie.at("before the offsets")
    run(second, zombie)
    zombie.go_on(spark)
    assert left(zombie.orders) == (0, 0, 0)
    assert put(zombie.orders, b"late")
    ending = zombie.end(second)
    assert "ClaimLostError" in ending
    assert "taken over" in ending
    assert Counter(drained(zombie.out)) == Counter(bodies)
    assert left(zombie.orders) == (1, 0, 0)

    kill(second)
    for query, step in zip(queries, STEPS, strict=True):
        query.go_on(spark)
        assert Counter(seen[query] + drained(query.out)) == Counter(bodies), f"killed {step}"
        assert left(query.orders) == left(query.out) == (0, 0, 0)
