"""Recurring jobs from the command line."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cli.conftest import Cli


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
