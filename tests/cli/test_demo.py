"""The main scenario: each line is processed once although a worker is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil

from aiozkqueue.cli.demo.account import Account, Victim
from aiozkqueue.cli.demo.records import Result, transformed
from tests.complaints import complaints

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Cli

TEXT = ["We the People", "", "of the United States"]


def test_each_line_is_processed_once_although_a_worker_is_killed_in_a_transaction(cli: Cli) -> None:
    environment = {name: value for name, value in cli.environment.items() if not name.startswith("AIOZKQUEUE")}
    command = [sys.executable, "-m", "aiozkqueue", "demo"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every line was processed exactly once." in done.stdout
    assert not complaints(done.stderr)


def test_the_demo_ignores_the_variable_that_names_servers(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("alone")
    demo = cli("demo", "--input", str(tmp_path / "text"), "--json", AIOZKQUEUE_HOSTS="127.0.0.1:1", AIOZKQUEUE_TLS="1")
    assert demo.status == 0, demo
    assert demo.records[0]["balanced"]


def test_an_interrupted_demo_deletes_its_queues(cli: Cli) -> None:
    demo = cli.start("demo", "--hosts", cli.environment["AIOZKQUEUE_HOSTS"])
    deadline = time.monotonic() + 60
    while not cli("queues").text and time.monotonic() < deadline:
        time.sleep(0.1)
    assert cli("queues").text
    demo.send_signal(signal.SIGINT)
    demo.communicate(timeout=60)
    assert cli("queues").text == ""


def test_the_json_account_reports_the_kill_and_the_takeover(cli: Cli, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("\n".join(f"line {n} of a text" for n in range(250)))
    demo = cli("demo", "--hosts", cli.environment["AIOZKQUEUE_HOSTS"], "--input", str(text), "--json")
    assert demo.status == 0, demo
    assert cli("queues").text == ""
    [account] = demo.records
    assert account["balanced"]
    assert (account["lines_in"], account["results_out"]) == (250, 250)
    assert account["killed"]["signal"] == "SIGKILL"
    assert account["killed"]["claims_at_that_moment"] >= 1
    assert account["take_over_seconds"] > 0
    assert sum(account["by_worker"].values()) == 250


def test_the_demo_accepts_a_text_of_one_line(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("alone")
    hosts = ("--hosts", cli.environment["AIOZKQUEUE_HOSTS"])
    [account] = cli("demo", *hosts, "--input", str(tmp_path / "text"), "--json").records
    assert account["balanced"]
    assert account["killed"]["inside_line"] == 1


def test_a_text_without_lines_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "text").touch()
    assert cli("demo", "--input", str(tmp_path / "text")).status == 2


def test_no_process_is_left_when_the_demo_is_killed(cli: Cli) -> None:
    demo = cli.start("demo", "--hosts", cli.environment["AIOZKQUEUE_HOSTS"])
    deadline = time.monotonic() + 60
    while not (workers := _workers_of(demo.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert workers
    demo.send_signal(signal.SIGKILL)
    demo.wait()
    deadline = time.monotonic() + 60
    while any(map(_alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(_alive, workers))


def _workers_of(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True) if "demo-worker" in _words_of(child)]


def _words_of(process: psutil.Process) -> list[str]:
    try:
        words: list[str] = process.cmdline()
    except psutil.NoSuchProcess:  # it ended after it was listed
        return []
    return words


def _alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)  # its parent may reap it later
    except psutil.NoSuchProcess:
        return False


def _account(*numbers: int, worker: str = "worker-2") -> Account:
    account = Account(TEXT)
    account.victim = Victim("worker-1", 4711, line=2, claims=3, killed_at=100.0, status=-9)
    for number in numbers:
        text, words = transformed(TEXT[number])
        account.results.append(Result(number=number, text=text, words=words, worker=worker, handed_over=104.5))
    return account


def test_an_account_balances_if_each_line_has_one_result() -> None:
    account = _account(2, 0, 1)
    assert account.balanced
    assert account.take_over == 4.5


def test_an_account_names_lost_and_duplicated_lines() -> None:
    account = _account(2, 2, 1)
    assert (account.lost, account.twice) == ([0], [2])
    assert not account.balanced


def test_an_account_names_results_that_are_not_from_the_text() -> None:
    account = _account(2, 0, 1)
    account.results[0].text = "something else"
    assert account.altered == [2]
    assert not account.balanced


def test_an_account_with_leftover_messages_or_dead_letters_does_not_balance() -> None:
    account = _account(0, 1, 2)
    account.left = 1
    assert not account.balanced
    account = _account(0, 1, 2)
    account.dead_letters = 1
    assert not account.balanced


def test_an_account_without_a_killed_worker_does_not_balance() -> None:
    account = _account(0, 1, 2)
    account.victim = None
    assert not account.balanced


def test_an_account_whose_killed_worker_finished_its_line_does_not_balance() -> None:
    assert not _account(0, 1, 2, worker="worker-1").balanced
