"""Drivers in separate processes that share the tests' JVM. Each starts within two seconds and can be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiozkqueue.spark.files import HadoopFiles
from aiozkqueue.zookeeper.client import ZooKeeperClient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

PROJECT = Path(__file__).parents[2]
#: The step of each move of a file, in addition to the steps that the work itself reports.
MOVE = "move"
_WRITES = ", write "

UnitOfWork = Callable[["SparkSession", "Sequence[str]", Callable[[str], object]], object]


def killed_at(spark: SparkSession, module: str, step: str, *arguments: str) -> None:
    """Have a driver run the ``work`` of a test module, and kill it when it begins a step."""
    done = _run(spark, module, step, *arguments)
    assert done.returncode == -signal.SIGKILL, f"step {step!r} was not reached: {done.stdout}{done.stderr}"


def killed_after(spark: SparkSession, module: str, step: str, writes: int, *arguments: str) -> bool:
    """Kill a driver when ZooKeeper has answered the n-th write of a step; return False if it ends before that."""
    done = _run(spark, module, f"{step}{_WRITES}{writes}", *arguments)
    assert done.returncode in {0, -signal.SIGKILL}, done.stdout + done.stderr
    return done.returncode != 0


def _run(spark: SparkSession, module: str, step: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    gateway: Any = spark.sparkContext._gateway
    parameters = gateway.gateway_parameters
    return subprocess.run(
        [sys.executable, "-m", "tests.spark.attached", module, step, *arguments],
        cwd=PROJECT,
        env={
            **os.environ,
            "PYTHONPATH": str(PROJECT),
            "PYSPARK_GATEWAY_PORT": str(parameters.port),
            "PYSPARK_GATEWAY_SECRET": parameters.auth_token,
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def _attached() -> SparkSession:
    """Return a session in this process with the Spark that already runs."""
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - takes a second
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415 - the same
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the same

    launch: Any = launch_gateway
    gateway = launch()
    jvm = gateway.jvm
    java = jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(
        jvm.org.apache.spark.SparkContext.getOrCreate()
    )
    SparkContext(gateway=gateway, jsc=java, conf=SparkConf(_jvm=jvm, _jconf=java.getConf()))
    return SparkSession.builder.getOrCreate()


class _Writes:
    """Counts the writes to ZooKeeper in one step of the work, and kills the driver when the last one is answered."""

    def __init__(self, step: str, last: int) -> None:
        self._step = step
        self._left = last
        self._counting = False
        self._multi: Any = ZooKeeperClient.multi
        client: Any = ZooKeeperClient
        client.multi = self._counted()

    def on_step(self, reached: str) -> None:
        self._counting = reached == self._step

    def _counted(self) -> Any:
        def multi(client: ZooKeeperClient, *arguments: Any, **more: Any) -> Any:
            answer = self._multi(client, *arguments, **more)
            if self._counting:
                self._left -= 1
                if not self._left:
                    answer.add_done_callback(lambda _: _die())
            return answer

        return multi


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _main(module: str, step: str, arguments: Sequence[str]) -> None:
    work: UnitOfWork = import_module(module).work
    if _WRITES in step:
        name, _, last = step.partition(_WRITES)
        work(_attached(), arguments, _Writes(name, int(last)).on_step)
        return

    def on_step(reached: str) -> None:
        if reached == step:
            _die()

    rename = HadoopFiles.rename

    def renamed(files: HadoopFiles, place: str, to: str) -> bool:
        done = rename(files, place, to)
        if to.endswith(".parquet"):
            on_step(MOVE)
        return done

    kind: Any = HadoopFiles  # type checkers refuse to replace a method
    kind.rename = renamed  # the only way to be killed between two moves
    work(_attached(), arguments, on_step)


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], sys.argv[3:])
