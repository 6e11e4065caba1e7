"""Figures on a machine whose clock is wrong: the time of the servers decides."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Cli, Done


def on_a_machine(cli: Cli, folder: Path, ahead: int) -> Callable[..., Done]:
    """Run the command on a machine whose clock is this many seconds ahead."""
    program = f"""
import datetime
import time

right = time.time
time.time = lambda: right() + {ahead}

class Wrong(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)

datetime.datetime = Wrong
"""
    (folder / "sitecustomize.py").write_text(program)
    modules = os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", "")))
    return partial(cli.in_new_process, PYTHONPATH=modules)


@pytest.mark.parametrize("ahead", [-7200, 7200])
def test_the_figures_of_queues_are_those_of_the_time_of_the_servers(cli: Cli, tmp_path: Path, ahead: int) -> None:
    run = on_a_machine(cli, tmp_path, ahead)
    cli("put", "jobs", "x")
    cli("put", "jobs", "x", "--delay", "1h")
    for arguments in (["stats", "--json"], ["top", "--json", "--once"]):
        (row,) = run(*arguments).records
        assert 0 < row["oldest_age"] < 3600, arguments
        assert (row["waiting"], row["delayed"]) == (1, 1), arguments
    assert {"s", "m"} & set(run("stats").text.split())


def test_a_message_is_delayed_until_its_time_by_the_servers(cli: Cli, tmp_path: Path) -> None:
    run = on_a_machine(cli, tmp_path, 7200)
    cli("put", "jobs", "x", "--delay", "1h")
    (peeked,) = run("peek", "jobs", "--json").records
    assert peeked["due"] is not None
    (state,) = run("state", "jobs", peeked["id"], "--json").records
    assert state["status"] == "delayed"
