"""Recurring jobs from the command line."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Cli
    from tests.observer import Observer


def test_jobs_are_added_listed_paused_resumed_and_removed(cli: Cli) -> None:
    added = cli("jobs", "add", "nightly", "0 3 * * *", "reports", "all", "--zone", "Asia/Kathmandu", "--missed", "all")
    assert (added.status, added.text.startswith("nightly: next ")) == (0, True)
    [job] = cli("jobs", "list", "--json").records
    assert (job["queue"], job["body"], job["missed"], job["next"][11:16]) == ("reports", "all", "all", "21:15")
    assert job["last"] is None, "it has not run yet"
    listed = cli("jobs", "list").text
    assert ("nightly" in listed, "never" in listed) == (True, True)
    assert cli("jobs", "pause", "nightly", "--json").records[0]["paused"]
    assert "paused" in cli("jobs", "list").text
    assert not cli("jobs", "resume", "nightly", "--json").records[0]["paused"]
    assert cli("jobs", "pause", "nightly").text == "nightly: paused\n"
    removed = cli("jobs", "remove", "nightly")
    assert (removed.status, removed.text) == (0, "")
    assert removed.stderr == "aiozkqueue: job 'nightly' is removed; messages that it has put stay in its queue\n"
    assert cli("jobs", "list").status == 1


def test_adding_a_job_twice_is_a_conflict_and_a_bad_expression_a_usage_error(cli: Cli) -> None:
    assert cli("jobs", "add", "nightly", "0 3 * * *", "reports").status == 0
    repeated = cli("jobs", "add", "nightly", "0 4 * * *", "reports")
    assert (repeated.status, "nightly" in repeated.stderr) == (5, True)
    bad = cli("jobs", "add", "other", "0 25 * * *", "reports")
    assert (bad.status, "cron" in bad.stderr) == (2, True)
    assert cli("jobs", "remove", "other").status == 1


def test_a_cron_nickname_is_shown_as_given(cli: Cli) -> None:
    [job] = cli("jobs", "add", "nightly", "@daily", "reports", "--zone", "Asia/Kathmandu", "--json").records
    assert (job["cron"], job["next"][11:16]) == ("@daily", "18:15")
    bad = cli("jobs", "add", "other", "@reboot", "reports")
    assert (bad.status, "or @daily" in bad.stderr) == (2, True)


def test_the_scheduler_command_puts_until_it_is_stopped(cli: Cli) -> None:
    cli("jobs", "add", "often", "* * * * * *", "reports", "x")
    scheduler = cli.start("jobs", "run")
    deadline = time.monotonic() + 90
    while not cli("peek", "reports", "--json").records:
        assert time.monotonic() < deadline
    scheduler.send_signal(signal.SIGTERM)
    assert scheduler.wait(90) == 0
    assert scheduler.stderr is not None
    logged = scheduler.stderr.read().decode()
    assert "started: scheduler\n" in logged
    assert "stopped: scheduler of 1 job: " in logged
    newest = cli("peek", "reports", "--json", "--limit", "1000").records[-1]["headers"]["occurrence"]
    cli("jobs", "pause", "often")
    assert cli("jobs", "resume", "often", "--json").records[0]["last"] == newest, "a resumed job keeps its last run"
    assert cli("jobs", "list", "--json").records[0]["last"] == newest


@pytest.mark.parametrize("ahead", [-7200, 7200])
async def test_jobs_are_overdue_by_the_time_of_the_servers_on_a_machine_with_a_wrong_clock(
    cli: Cli, server_view: Observer, queue_root: str, tmp_path: Path, ahead: int
) -> None:
    program = f"import time\n\nright = time.time\ntime.time = lambda: right() + {ahead}\n"
    await asyncio.to_thread((tmp_path / "sitecustomize.py").write_text, program)
    for name, cron in (("report", "* * * * *"), ("yearly", "0 0 1 1 *")):
        added = await asyncio.to_thread(cli, "jobs", "add", name, cron, "reports")
        assert added.status == 0, added.stderr
    late = ahead < 0  # the machine believes the opposite
    if late:
        stored = f"{queue_root}/.schedule/report"
        job = json.loads(await server_view.get(stored))
        await server_view.set(stored, json.dumps({**job, "last": job["last"] - 600_000}).encode())
    modules = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    listed = await asyncio.to_thread(partial(cli.in_new_process, "jobs", "list", "--json", PYTHONPATH=modules))
    assert {record["name"]: record["overdue"] for record in listed.records} == {"report": late, "yearly": False}
    assert ("No scheduler seems to run" in listed.stderr) == late
