"""The Spark session of commands that need one: on the user's cluster, or a temporary one on this machine."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TextIO

import typer

from aiozkqueue.cli import bars
from aiozkqueue.cli.connection import DEFAULT_HOSTS, Connection
from aiozkqueue.cli.exits import CommandFailedError
from aiozkqueue.extras import missing
from aiozkqueue.session.credentials import AUTH, AUTH_FILE
from aiozkqueue.testing.spark import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER: Final = "AIOZKQUEUE_SPARK_MASTER"
_PANEL: Final = "Spark"

Master = Annotated[
    str,
    typer.Option(
        envvar=MASTER, metavar="URL", help="The Spark master: a cluster's URL, or local\\[n].", rich_help_panel=_PANEL
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE", help="A Spark setting, as for spark-submit; may be repeated.", rich_help_panel=_PANEL
    ),
]
LOCAL: Final = "local[*]"

_QUIET: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
}
_ON_THIS_MACHINE: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "8",
}
_POLL: Final = 0.2

#: A path that is not on this machine: one with a scheme.
ELSEWHERE: Final = re.compile(r"\w[\w+.-]*:")


def options_of(connection: Connection) -> dict[str, str]:
    """Return the connection as options of the Spark format.

    Credentials are passed in the environment, never as options.
    """
    if connection.auth:
        os.environ[AUTH] = connection.credentials()
        os.environ.pop(AUTH_FILE, None)
    options = {
        "hosts": DEFAULT_HOSTS if connection.hosts is None else connection.hosts,
        "root": connection.root,
        "sessionTimeout": connection.session_timeout,
        "connectTimeout": connection.connect_timeout,
        "tlsCa": connection.tls_ca,
        "tlsCert": connection.tls_cert,
        "tlsKey": connection.tls_key,
    }
    return {name: str(value) for name, value in options.items() if value is not None}


def place(path: str) -> str:
    """Return the path of a file, folder or pattern for Spark, whose JVM may run elsewhere.

    A path with a scheme is unchanged.
    """
    return path if ELSEWHERE.match(path) else os.path.abspath(path)  # noqa: PTH100 - it may be a pattern


@contextmanager
def spark_session(master: str, conf: Sequence[str] | None) -> Iterator[SparkSession]:
    """Open a session for the block. An existing session of the process is used and stays open.

    Raises: typer.BadParameter; MissingExtraError; CommandFailedError: Spark does not start, or fails.
    """
    settings = _settings(conf or ())
    absent = [name for name in ("pyspark", "pyarrow", "pandas") if find_spec(name) is None]
    if absent:
        raise missing(absent[0], "cli,spark,embedded")
    from pyspark.sql import SparkSession  # noqa: PLC0415 - slow to import, and optional

    from aiozkqueue.spark.failures import SPARK_ERRORS, condition_of  # noqa: PLC0415 - imports pyspark

    with ExitStack() as stack:
        session = SparkSession.getActiveSession()
        if session is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="aiozkqueue-spark-"))
            session = _start(master, settings, Path(folder))
            stack.callback(_stop, session)
        try:
            yield session
        except SPARK_ERRORS as error:
            msg = f"Spark fails: {condition_of(error)[1]}"
            raise CommandFailedError(msg) from error


def _settings(conf: Sequence[str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for setting in conf:
        key, equals, value = setting.partition("=")
        if not key or not equals:
            msg = f"{setting!r}: expected KEY=VALUE"
            raise typer.BadParameter(msg, param_hint="--conf")
        settings[key] = value
    return settings


def _start(master: str, settings: dict[str, str], folder: Path) -> SparkSession:
    from pyspark.errors import PySparkException  # noqa: PLC0415 - as above
    from pyspark.sql import SparkSession  # noqa: PLC0415 - as above

    local = master.startswith("local")
    os.environ["JAVA_HOME"] = java_home(folder / "java")
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName("aiozkqueue")
    own = _QUIET | (_ON_THIS_MACHINE | {"spark.local.dir": str(folder / "work")} if local else {})
    for key, value in (own | settings).items():
        builder = builder.config(key, value)
    log = folder / "spark.log"
    try:
        with _errors_to(log) as stderr, bars.waiting("starting Spark", stderr):
            return builder.getOrCreate()
    except (PySparkException, OSError, RuntimeError) as error:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        msg = f"Spark does not start with --master {master}: {(lines or [str(error)])[-1]}"
        raise CommandFailedError(msg) from error


def _stop(session: SparkSession) -> None:
    gateway: Any = session.sparkContext._gateway  # noqa: SLF001 - pyspark leaves its JVM to the end of the process
    session.stop()
    if gateway is not None and gateway.proc is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()


@contextmanager
def _errors_to(path: Path) -> Iterator[TextIO]:
    """Redirect stderr of the JVM, and so of the tasks, to a file; yield our own stderr for the command's messages."""
    sys.stderr.flush()
    with os.fdopen(os.dup(2), "w", encoding="utf-8") as kept:
        try:
            with path.open("wb") as file:
                os.dup2(file.fileno(), 2)
            yield kept
        finally:
            os.dup2(kept.fileno(), 2)


@contextmanager
def watched(spark: SparkSession, text: str) -> Iterator[bars.Bar]:
    """Show a bar with the completed tasks of Spark's jobs during the block."""
    over = threading.Event()
    with bars.progress(text, None) as bar:
        watcher = threading.Thread(target=_watch, args=(spark, bar, over), daemon=True)
        watcher.start()
        try:
            yield bar
        finally:
            over.set()
            watcher.join()


def _watch(spark: SparkSession, bar: bars.Bar, over: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    progress: dict[int, tuple[int, int]] = {}
    while not over.wait(_POLL):
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None:
                progress[stage] = (info.numCompletedTasks, info.numTasks)
        for stage in progress.keys() - set(tracker.getActiveStageIds()):
            progress[stage] = (progress[stage][1], progress[stage][1])
        bar.reach(sum(done for done, _ in progress.values()), sum(tasks for _, tasks in progress.values()))
