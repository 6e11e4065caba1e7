"""Real drivers, killed at every step of a micro-batch, or taken for dead and back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.local import PROJECT, environment
from tests.spark.stepping import GO, STEP, STEPS, pipe
from tests.spark.test_batch import drained, put
from tests.spark.test_stream import left

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def driver(options: Mapping[str, str], folder: Path, java: str, **more: str) -> subprocess.Popen[str]:
    """Start a driver in a process group of its own; the others are told to it by its environment."""
    command = [sys.executable, "-m", "tests.spark.stepping", options["hosts"], options["root"], str(folder)]
    return subprocess.Popen(
        command,
        cwd=PROJECT,
        env={**os.environ, **environment(java), **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    )


def go_on(spark: SparkSession, options: Mapping[str, str], folder: Path) -> None:
    """Start the query in this process, and let it come to its end."""
    pipe(spark, {name: options[name] for name in ("hosts", "root")}, str(folder), "aiozkqueue")


def test_a_driver_killed_at_every_step_and_started_again_loses_and_doubles_nothing(
    spark: SparkSession, options: dict[str, str], tmp_path: Path, spark_java: str
) -> None:
    bodies = [b"%d" % n for n in range(4 * len(STEPS))]
    put(options, *bodies)
    seen: list[bytes] = []
    for step in STEPS:
        process = driver(options, tmp_path, spark_java, **{STEP: step})
        output, _ = process.communicate(timeout=600)
        assert process.returncode == -signal.SIGKILL, f"{step}: {output[-3000:]}"
        if len(seen) < len(bodies) // 2:  # what consumers have taken must not come again
            seen += drained({**options, "queue": "out"})
    go_on(spark, options, tmp_path)
    seen += drained({**options, "queue": "out"})
    assert Counter(seen) == Counter(bodies)
    assert left(options) == (0, 0, 0)
    assert left({**options, "queue": "out"}) == (0, 0, 0)


def test_a_driver_that_was_thought_dead_comes_back_and_changes_nothing(
    spark: SparkSession, options: dict[str, str], tmp_path: Path, spark_java: str
) -> None:
    bodies = [b"%d" % n for n in range(10)]
    put(options, *bodies)
    go = tmp_path / "go"
    process = driver(options, tmp_path, spark_java, **{STEP: "before the offsets", GO: str(go)})
    try:
        deadline = time.monotonic() + 300
        while not Path(f"{go}.waits").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        go_on(spark, options, tmp_path)
        assert left(options) == (0, 0, 0)
        late = put(options, b"late")
        go.touch()
        output, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode != 0
    assert "ClaimLostError" in output
    assert "taken over" in output
    assert Counter(drained({**options, "queue": "out"})) == Counter(bodies)
    assert late
    assert left(options) == (1, 0, 0)
