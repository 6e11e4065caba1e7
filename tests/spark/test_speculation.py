"""Slow tasks of which Spark runs a second attempt on another executor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.spark.local import PROJECT, environment
from tests.spark.speculating import DONE, EVENTS, ROWS, TRIED
from tests.spark.test_batch import drained, state

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_speculative_second_attempt_puts_each_row_once(
    options: dict[str, str], tmp_path: Path, spark_java: str
) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.speculating", options["hosts"], options["root"], str(tmp_path)],
        cwd=PROJECT,
        env={**os.environ, **environment(spark_java)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    )
    try:
        printed, _ = driver.communicate(timeout=500)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
    assert driver.returncode == 0, printed
    assert all((tmp_path / name).exists() for name in (TRIED.format(0), TRIED.format(1), DONE)), printed
    events = "".join(file.read_text() for file in (tmp_path / EVENTS).rglob("*") if file.is_file())
    assert '"Speculative":true' in events, printed
    assert Counter(drained(options)) == Counter(b"%d" % n for n in range(ROWS))
    assert state(options) == (0, 0)
