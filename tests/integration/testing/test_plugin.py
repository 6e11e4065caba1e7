"""The fixtures as a user's own project meets them: in a pytest run of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

_USES_EVERYTHING = """
import pytest, socket
from aiozkqueue.testing import Opcode

@pytest.mark.asyncio
async def test_the_proxy_is_on_the_tests_own_loop(zookeeper, zookeeper_proxy, queue_root):
    assert queue_root.startswith("/")
    assert zookeeper_proxy.hosts != zookeeper
    zookeeper_proxy.lose_after(Opcode.MULTI)

def test_the_server_answers(zookeeper):
    host, port = zookeeper.split(":")
    with socket.create_connection((host, int(port)), 5) as connection:
        connection.sendall(b"ruok")
        assert connection.recv(4) == b"imok"

def test_roots_differ(queue_root, request):
    seen = request.config.stash.setdefault(KEY, set())
    assert queue_root not in seen
    seen.add(queue_root)

test_roots_differ_again = test_roots_differ
KEY = pytest.StashKey()
"""
_SETTINGS = """
[pytest]
filterwarnings = error
asyncio_default_fixture_loop_scope = function
"""
_NEEDS_A_SERVER = "def test_it(zookeeper): print('HOSTS', zookeeper)"
_HIDE = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in {hidden!r} else find(name, *more)
for name in {hidden!r}:
    sys.modules[name] = None
"""


def run(folder: Path, test: str, *arguments: str, conftest: str = "", **environment: str) -> str:
    """What a pytest run of a project with this one test file prints."""
    (folder / "test_users.py").write_text(test)
    (folder / "conftest.py").write_text(conftest)
    (folder / "pytest.ini").write_text(_SETTINGS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", "-s", *arguments, str(folder)],
        cwd=folder,
        env={"PATH": "/nowhere", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


def test_a_users_project_gets_a_server_a_root_and_a_proxy_without_any_setup(tmp_path: Path) -> None:
    assert "4 passed" in run(tmp_path, _USES_EVERYTHING)


def test_the_server_named_in_the_environment_is_taken_before_all_others(tmp_path: Path) -> None:
    told = run(tmp_path, _NEEDS_A_SERVER, AIOZKQUEUE_ZOOKEEPER="zk.example:2181", DOCKER_HOST="unix:///nowhere")
    assert "HOSTS zk.example:2181" in told


def test_where_nothing_is_to_be_had_the_test_is_skipped_and_told_what_to_install(tmp_path: Path) -> None:
    told = run(tmp_path, _NEEDS_A_SERVER, conftest=_HIDE.format(hidden=("pyspark",)))
    assert "1 skipped" in told
    assert "pip install 'aiozkqueue[embedded]'" in told
    assert "AIOZKQUEUE_ZOOKEEPER is not set" in told


def test_a_docker_engine_that_does_not_answer_holds_nothing_up(tmp_path: Path) -> None:
    began = time.monotonic()
    # An address that swallows what is sent to it.
    told = run(tmp_path, _NEEDS_A_SERVER, DOCKER_HOST="tcp://192.0.2.1:2375")
    assert "1 passed" in told
    assert time.monotonic() - began < 15


def test_a_run_without_our_fixtures_loads_neither_server_nor_proxy(tmp_path: Path) -> None:
    told = run(
        tmp_path,
        "import sys\ndef test_it(): print('LOADED', [name for name in sys.modules if name.startswith('aiozkqueue')])",
    )
    loaded = next(line for line in told.splitlines() if "LOADED" in line)
    for module in ("server", "proxy", "frames", "container", "cleaning"):
        assert f"aiozkqueue.testing.{module}'" not in loaded
    assert "aiozkqueue.testing.plugin" in loaded


@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_the_proxy_works_in_both_modes_of_pytest_asyncio(tmp_path: Path, mode: str) -> None:
    assert "4 passed" in run(tmp_path, _USES_EVERYTHING, f"--asyncio-mode={mode}")
