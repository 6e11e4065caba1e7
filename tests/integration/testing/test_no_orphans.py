"""The JVM and its data are removed when the process that started the server ends in any way."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_PARENT = """
import os, sys, time
from aiozkqueue.testing import EmbeddedEnsemble
servers = EmbeddedEnsemble({size})
servers.start()
if {fork} and os.fork() == 0:
    time.sleep(60)
    os._exit(0)
print(servers.nodes[0].folder, *(node.pid for node in servers.nodes), flush=True)
{then}
"""
_WAIT = "time.sleep(60)"


def alive(process: psutil.Process) -> bool:
    """Return whether a process runs; in a container without an init, ended processes stay zombies."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class Parent:
    """A process that starts servers."""

    def __init__(self, *, size: int = 1, fork: bool = False, then: str = _WAIT) -> None:
        script = _PARENT.format(size=size, fork=fork, then=then)
        self.process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        folder, *pids = self.process.stdout.readline().split()
        self.folder = Path(folder)
        self.servers = [int(pid) for pid in pids]
        self.family: list[psutil.Process] = []
        for pid in self.servers:
            with suppress(psutil.NoSuchProcess):  # it may already have ended with its parent
                self.family.append(psutil.Process(pid))

    def supervisors(self) -> list[int]:
        return [server.ppid() for server in self.family]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def all_gone(self, timeout: float = 60.0) -> bool:
        deadline = time.monotonic() + timeout
        while any(alive(server) for server in self.family):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def data_gone(self, timeout: float = 60.0) -> bool:
        deadline = time.monotonic() + timeout
        while self.folder.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        return not self.folder.exists()

    def clean_up(self) -> None:
        for process in self.family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def parents() -> Iterator[list[Parent]]:
    started: list[Parent] = []
    yield started
    for parent in started:
        parent.clean_up()


def test_a_server_and_its_data_are_removed_when_its_parent_is_killed(parents: list[Parent]) -> None:
    parents.append(parent := Parent())
    assert psutil.pid_exists(parent.servers[0])
    parent.kill()
    assert parent.all_gone()
    assert parent.data_gone()


def test_an_ensemble_ends_when_its_parent_is_killed(parents: list[Parent]) -> None:
    parents.append(parent := Parent(size=3))
    parent.kill()
    assert parent.all_gone()
    assert parent.data_gone()


def test_a_paused_server_ends_when_its_parent_is_killed(parents: list[Parent]) -> None:
    parents.append(parent := Parent())
    os.kill(parent.servers[0], signal.SIGSTOP)
    parent.kill()
    assert parent.all_gone()


def test_a_surviving_forked_child_does_not_keep_the_server_running(parents: list[Parent]) -> None:
    parents.append(parent := Parent(fork=True))
    children = [
        child for child in psutil.Process(parent.process.pid).children() if child.pid not in parent.supervisors()
    ]
    parent.kill()
    assert parent.all_gone()
    for child in children:
        child.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can tie a child's life to its parent's")
def test_the_server_ends_when_its_supervisor_is_killed(parents: list[Parent]) -> None:
    parents.append(parent := Parent())
    for pid in [parent.process.pid, *parent.supervisors()]:
        os.kill(pid, signal.SIGKILL)
    assert parent.all_gone()


@pytest.mark.parametrize("then", ["", "raise SystemExit(1)", "os._exit(3)"])
def test_a_parent_that_ends_without_stopping_leaves_no_server(parents: list[Parent], then: str) -> None:
    parents.append(parent := Parent(then=then))
    parent.process.wait()
    assert parent.all_gone()
    assert parent.data_gone()
