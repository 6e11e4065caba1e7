"""The fixtures in a user's own project, in a separate pytest run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
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
_USES_THE_QUEUE = """
import asyncio
import pytest
import aiozkqueue as zq
from aiozkqueue import testing

async def use(session, clock):
    parcels = session.queue("parcels")
    async with session.transaction() as tx:
        tx.put(parcels, b"tea", key="1", delay=3600)
    assert (await testing.assert_put(parcels, b"tea", key="1")).due is not None
    clock.advance(3600)
    async with session.transaction() as tx:
        tx.reject(await tx.take(parcels, timeout=30), "no such address")
    await testing.assert_empty(parcels)
    await testing.assert_dead_lettered(parcels, b"tea", reason="address")

@pytest.mark.asyncio
async def test_under_asyncio(queue_session, queue_clock):
    await use(queue_session, queue_clock)

@pytest.mark.asyncio
async def test_the_next_test_finds_no_data_of_the_previous_one(queue_session):
    assert await queue_session.queues() == []

@pytest.mark.asyncio
async def test_two_sessions_are_on_one_server(queue_server):
    async with queue_server.connect() as first, queue_server.connect() as second:
        await first.queue("parcels").put(b"tea")
        async with second.transaction() as tx:
            assert (await tx.take(second.queue("parcels"), timeout=20)).body == b"tea"

def test_without_any_plugin_for_async_tests(queue_server, queue_clock):
    async def main():
        async with queue_server.connect() as session:
            await use(session, queue_clock)
    asyncio.run(main())

def test_the_switch(queue_server):
    print("KIND", type(queue_server).__name__)
"""
_USES_WIDER_LOOPS = """
import pytest

@pytest.mark.asyncio
async def test_default(queue_session, zookeeper_proxy):
    await queue_session.queue("parcels").put(b"tea")

@pytest.mark.asyncio(loop_scope="function")
async def test_function(queue_session):
    assert await queue_session.queue("parcels").size() == 0

@pytest.mark.asyncio(loop_scope="class")
class TestOfAClass:
    async def test_class(self, queue_session):
        assert await queue_session.queue("parcels").size() == 0

@pytest.mark.asyncio(loop_scope="module")
async def test_module(queue_session, zookeeper_proxy):
    assert await queue_session.queue("parcels").size() == 0

@pytest.mark.asyncio(loop_scope="package")
async def test_package(queue_session):
    assert await queue_session.queue("parcels").size() == 0

@pytest.mark.asyncio(loop_scope="session")
async def test_session(queue_session, zookeeper_proxy):
    await queue_session.queue("parcels").put(b"tea")
    zookeeper_proxy.refuse()

@pytest.mark.asyncio(loop_scope="session")
async def test_session_again(queue_session):
    assert await queue_session.queue("parcels").size() == 0
"""
_USES_ANYIO = """
import pytest
from aiozkqueue import testing

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.mark.anyio
async def test_under_anyio(queue_session, queue_clock):
    parcels = queue_session.queue("parcels")
    await parcels.put(b"tea", delay=3600)
    queue_clock.advance(3600)
    async with queue_session.transaction() as tx:
        assert await tx.take(parcels, timeout=30) is not None
    await testing.assert_empty(parcels)
"""
_SETTINGS = """
[pytest]
filterwarnings = error
asyncio_default_fixture_loop_scope = function
"""
# Installed plugins that few users have and that take long to import.
_NO_SLOW = ("-p", "no:schemathesis", "-p", "no:hypothesispytest")
_NEEDS_A_SERVER = "def test_it(zookeeper): print('HOSTS', zookeeper)"
_TIMES_THE_QUESTION = """
import time
from aiozkqueue.testing import container
ask = container.engine_answers
def timed():
    began = time.monotonic()
    try:
        return ask()
    finally:
        print("ASKED FOR", time.monotonic() - began, "s")
container.engine_answers = timed
"""
_HIDE = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in {hidden!r} else find(name, *more)
for name in {hidden!r}:
    sys.modules[name] = None
"""


def run(
    folder: Path, test: str, *arguments: str, conftest: str = "", settings: str = _SETTINGS, **environment: str
) -> str:
    """Return the output of a pytest run of a project with this one test file."""
    (folder / "test_users.py").write_text(test)
    (folder / "conftest.py").write_text(conftest)
    (folder / "pytest.ini").write_text(settings)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *_NO_SLOW, "-p", "no:cacheprovider", "-rs", "-s", *arguments, str(folder)],
        cwd=folder,
        env={"PATH": "/nowhere", "PYTHONPATH": os.environ.get("PYTHONPATH", ""), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


def test_a_users_project_gets_a_server_a_root_and_a_proxy_without_any_setup(tmp_path: Path) -> None:
    assert "4 passed" in run(tmp_path, _USES_EVERYTHING)


def test_the_server_named_in_the_environment_has_precedence(tmp_path: Path) -> None:
    output = run(tmp_path, _NEEDS_A_SERVER, AIOZKQUEUE_ZOOKEEPER="zk.example:2181", DOCKER_HOST="unix:///nowhere")
    assert "HOSTS zk.example:2181" in output


def test_a_test_without_any_server_is_skipped_and_says_what_to_install(tmp_path: Path) -> None:
    output = run(tmp_path, _NEEDS_A_SERVER, conftest=_HIDE.format(hidden=("pyspark",)))
    assert "1 skipped" in output
    assert "pip install 'aiozkqueue[embedded]'" in output
    assert "AIOZKQUEUE_ZOOKEEPER is not set" in output


def test_a_docker_engine_that_does_not_answer_does_not_block_the_tests(tmp_path: Path) -> None:
    # An address that never answers. Only the time of the question is measured, not the start of the server.
    output = run(tmp_path, _NEEDS_A_SERVER, conftest=_TIMES_THE_QUESTION, DOCKER_HOST="tcp://192.0.2.1:2375")
    assert "1 passed" in output
    (asked,) = re.findall(r"ASKED FOR ([\d.]+) s", output)
    assert float(asked) < 15


def test_the_plugin_imports_no_other_package() -> None:
    """Wherever the package is installed, every pytest run loads the plugin, even if it does not use it."""
    program = "import sys, pytest, pytest_asyncio; before = {*sys.modules}; import pytest_aiozkqueue as plugin"
    shown = subprocess.check_output([sys.executable, "-c", f"{program}; print(*{{*sys.modules}} - before)"], text=True)
    assert shown.split() == ["pytest_aiozkqueue"]


def test_a_run_without_our_fixtures_does_not_import_the_package(tmp_path: Path) -> None:
    output = run(
        tmp_path,
        "import sys\ndef test_it(): print('LOADED', [name for name in sys.modules if 'aiozkqueue' in name])",
    )
    assert "LOADED ['pytest_aiozkqueue']" in output


@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_the_proxy_works_in_both_modes_of_pytest_asyncio(tmp_path: Path, mode: str, zookeeper: str) -> None:
    output = run(tmp_path, _USES_EVERYTHING, f"--asyncio-mode={mode}", AIOZKQUEUE_ZOOKEEPER=zookeeper)
    assert "4 passed" in output, output


@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_a_users_tests_run_on_the_simulator_in_both_modes_of_pytest_asyncio(tmp_path: Path, mode: str) -> None:
    output = run(tmp_path, _USES_THE_QUEUE, f"--asyncio-mode={mode}", AIOZKQUEUE_ZOOKEEPER="nobody.invalid:1")
    assert "5 passed" in output, output
    assert "KIND SimulatedServer" in output


@pytest.mark.parametrize("kind", ["simulator", "server"])
@pytest.mark.parametrize("default", ["function", "session"])
def test_async_fixtures_are_on_the_loop_of_the_test_whatever_its_scope(
    tmp_path: Path, default: str, kind: str, zookeeper: str
) -> None:
    settings = f"{_SETTINGS}asyncio_default_test_loop_scope = {default}\n"
    output = run(tmp_path, _USES_WIDER_LOOPS, f"--aiozkqueue={kind}", settings=settings, AIOZKQUEUE_ZOOKEEPER=zookeeper)
    assert "7 passed" in output, output


def test_one_switch_runs_the_same_tests_on_a_real_server(tmp_path: Path, zookeeper: str) -> None:
    output = run(tmp_path, _USES_THE_QUEUE, "--aiozkqueue=server", AIOZKQUEUE_ZOOKEEPER=zookeeper)
    assert "5 passed" in output, output
    assert "KIND RealServer" in output


def test_the_switch_can_be_set_for_a_project_and_overridden_for_a_run(tmp_path: Path, zookeeper: str) -> None:
    which = "def test_the_switch(queue_server): print('KIND', type(queue_server).__name__)"
    project = f"{_SETTINGS}aiozkqueue_server = server\n"
    assert "KIND RealServer" in run(tmp_path, which, settings=project, AIOZKQUEUE_ZOOKEEPER=zookeeper)
    assert "KIND SimulatedServer" in run(tmp_path, which, "--aiozkqueue=simulator", settings=project)


def test_the_error_for_an_unknown_switch_value_names_the_valid_ones(tmp_path: Path) -> None:
    output = run(tmp_path, "def test_it(queue_server): pass", settings=f"{_SETTINGS}aiozkqueue_server = cloud\n")
    assert "aiozkqueue_server = 'cloud': give 'simulator' or 'server'" in output


def test_an_anyio_test_gets_its_session_on_the_anyio_loop_despite_pytest_asyncio(tmp_path: Path) -> None:
    output = run(tmp_path, _USES_ANYIO, "--asyncio-mode=strict")
    assert "1 passed" in output, output


def test_the_anyio_plugin_runs_the_fixtures_without_pytest_asyncio(tmp_path: Path) -> None:
    (tmp_path / "hide.py").write_text("import sys; sys.modules['pytest_asyncio'] = None")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    plugins = ["-p", "hide", "-p", "pytest_aiozkqueue", "-p", "anyio.pytest_plugin"]
    settings = "[pytest]\nfilterwarnings = error\n"
    output = run(
        tmp_path, _USES_ANYIO, *plugins, settings=settings, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", PYTHONPATH=path
    )
    assert "1 passed" in output, output


def test_the_error_for_a_test_that_no_plugin_runs_says_what_to_do(tmp_path: Path) -> None:
    output = run(tmp_path, "def test_it(queue_session): pass")
    assert "queue_session is for async tests that pytest-asyncio or anyio's plugin runs" in output
    assert "queue_server" in output


def test_the_traceback_of_a_failed_assertion_ends_at_the_users_own_line(tmp_path: Path) -> None:
    calls = 'await testing.assert_put(queue_session.queue("parcels"), b"1")'
    output = run(
        tmp_path,
        f"from aiozkqueue import testing\nasync def test_it(queue_session):\n    {calls}\n",
        "--asyncio-mode=auto",
    )
    assert "queue 'parcels' has no message that is b'1'" in output
    assert f">       {calls}" in output or f">   {calls}" in output
    assert "assertions.py" not in output
