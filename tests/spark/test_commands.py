"""The commands `audit`, `load` and `unload`, on the tests' Spark and once on a Spark that the command starts."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError

from aiozkqueue.cli.app import run
from aiozkqueue.spark.failures import condition_of
from tests.complaints import complaints
from tests.docs.pages import blocks, commands, shows
from tests.spark.local import CONF
from tests.spark.test_audit import known, servers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["known", "servers"]

PROJECT = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(300)


@dataclass
class Command:
    """Runs the command as its entry point does."""

    capture: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        status = run(list(arguments))
        printed = self.capture.readouterr()
        return status, printed.out, printed.err

    def records(self, *arguments: str) -> list[dict[str, Any]]:
        status, out, err = self(*arguments, "--json")
        assert status == 0, err
        return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def command(
    spark: SparkSession,
    servers: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Command:
    assert spark.getActiveSession() is not None
    monkeypatch.setenv("AIOZKQUEUE_HOSTS", servers["hosts"])
    monkeypatch.setenv("AIOZKQUEUE_ROOT", servers["root"])
    monkeypatch.setenv("COLUMNS", "200")
    return Command(capsys)


@pytest.mark.usefixtures("known")
def test_an_audit_prints_tables_and_json_and_writes_a_self_contained_page(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    status, out, err = command("audit", "--to", str(folder))
    assert status == 0, err
    assert "104 records moved" in err
    assert "per second" in out
    assert "<b>no such customer</b>" in out
    assert next(line.split()[1:4] for line in out.splitlines() if "orders" in line) == ["orders", "│", "103"]
    page = (folder / "_report.html").read_text(encoding="utf-8")
    assert "&lt;b&gt;no such customer&lt;/b&gt;" in page
    assert "<b>no such" not in page
    assert not any(reference in page for reference in ("http:", "https:", "<script", "<link", "@import", "url("))
    found = command.records("audit", "--to", str(folder), "--queue", "orders", "--html", str(tmp_path / "a.html"))
    assert {"kind": "dead-letters", "queue": "orders", "reason": "<b>no such customer</b>", "messages": 3} in found
    (queue,) = [document for document in found if document["kind"] == "queue"]
    assert (queue["ended"], queue["waiting"]) == (103, {"p50": 0.49, "p95": 0.95, "p99": 0.99})
    assert found[0]["moved"] == 0


def test_the_commands_of_the_guide_print_and_exit_as_shown(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = PROJECT / "docs" / "cli.md"
    (block,) = [block for block in blocks(page) if block.language == "text" and "$ aiozkqueue load" in block.text]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    for shown in commands(block):
        if shown.text.startswith("aiozkqueue") and ">" not in shown.text:
            status, out, err = command(*shlex.split(shown.text)[1:])
        else:
            done = subprocess.run(["sh", "-c", shown.text], stdout=subprocess.PIPE, text=True, timeout=120, check=False)
            status, out, err = done.returncode, done.stdout, ""
        where = f"{page.name}:{shown.line}: {shown.text}\n{out}{err}"
        assert status == shown.status, where
        assert shows(shown.output, out if status == 0 else err), where


def test_every_command_error_is_one_line(command: Command, tmp_path: Path) -> None:
    def refused(status: int, expected: str, *arguments: str) -> None:
        found, out, err = command(*arguments)
        assert (found, out, err.count("\n")) == (status, "", 1), err
        assert expected in err

    refused(2, "there is no file 'nowhere.csv'", "load", "nowhere.csv", "--queue", "orders")
    refused(2, "Missing option '--queue'", "load", __file__)
    refused(1, "there is no queue 'orders'", "unload", "orders", "--to", str(tmp_path / "a"))
    refused(1, "there is no queue 'orders'", "audit", "--to", str(tmp_path / "b"), "--queue", "orders")
    bad = tmp_path / "bad.csv"
    bad.write_text("body,colour\nx,red\n")
    refused(2, "column 'colour'", "load", str(bad), "--queue", "orders")
    refused(2, "expected KEY=VALUE", "load", str(bad), "--queue", "orders", "--conf", "x")
    refused(3, "127.0.0.1:1", "load", str(bad), "--queue", "o", "--hosts", "127.0.0.1:1", "--connect-timeout", "0.2")
    refused(2, "contains other files (bad.csv)", "audit", "--to", str(tmp_path))
    (tmp_path / "rows.csv").write_text("body\nx\n")
    assert command("load", str(tmp_path / "rows.csv"), "--queue", "orders")[0] == 0
    where = ("unload", "orders", "--to", str(tmp_path / "c"), "--schema")
    refused(2, "'id int, foo': give columns as in 'id int, name string': [PARSE_SYNTAX_ERROR]", *where, "id int, foo")


def test_a_failure_of_spark_is_reported_with_its_cause_and_not_with_the_call_of_python(spark: SparkSession) -> None:
    java: Any = spark.sparkContext._jvm
    with pytest.raises(Py4JJavaError, match="An error occurred while calling") as error:
        java.java.util.Optional.empty().get()
    assert condition_of(error.value) == ("", "java.util.NoSuchElementException: No value present")


def test_a_load_that_is_complete_is_not_repeated(command: Command, tmp_path: Path) -> None:
    lines = tmp_path / "orders.jsonl"
    lines.write_text('{"id": 1}\n{"id": 2}\n')
    asked = ("load", str(lines), "--queue", "orders", "--write-id", "monday")
    assert command(*asked)[:2] == (0, "2 loaded\n")
    complete = "aiozkqueue: write 'monday' was already complete\n"
    assert command(*asked) == (0, "0 loaded\n", complete)
    assert command.records(*asked) == [{"queue": "orders", "loaded": 0}]
    assert command(*asked[:-1], "tuesday")[:2] == (0, "2 loaded\n")


def test_a_load_and_an_unload_show_their_progress_on_a_terminal(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = tmp_path / "orders.jsonl"
    lines.write_text('{"id": 1}\n{"id": 2}\n')
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "load orders" in command("load", str(lines), "--queue", "orders")[2]
    shown = command("unload", "orders", "--to", str(tmp_path / "orders"), "--batch", "1")[2]
    assert "unload orders" in shown
    assert "100%" in shown


@pytest.mark.slow
def test_the_command_starts_its_own_spark_without_log_output(servers: dict[str, str], tmp_path: Path) -> None:
    lines = tmp_path / "orders.jsonl"
    lines.write_text('{"id": 1}\n')
    done = subprocess.run(
        [sys.executable, "-m", "aiozkqueue", "load", str(lines), "--queue", "orders"],
        env=os.environ | CONF | {"AIOZKQUEUE_HOSTS": servers["hosts"], "AIOZKQUEUE_ROOT": servers["root"]},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stdout, complaints(done.stderr)) == (0, "1 loaded\n", "")
