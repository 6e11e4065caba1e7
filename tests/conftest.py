"""Fixtures and settings for all of the project's own tests. `pytest_aiozkqueue` has the public fixtures."""

from __future__ import annotations

import gc
import signal
from random import Random
from typing import TYPE_CHECKING

import kazoo.protocol.connection
import kazoo.retry
import pytest
from blockbuster import blockbuster_ctx
from hypothesis import HealthCheck, settings
from pydantic import TypeAdapter

from aiozkqueue.testing import Certificates, make_certificates
from tests.observer import Observer, observer
from tests.order import Scopes, slowest_first, with_slow_tests
from tests.started import started

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterator
    from pathlib import Path

    from xdist.remote import Producer

# Its threads may use the module `random` at any time. Hypothesis would attribute that to the example that it is
# generating, and fail.
kazoo.protocol.connection.random = kazoo.retry.random = Random()

# pydantic reads its list of plugins from the disk when it creates its first type. Do this now, so that it blocks no
# loop.
TypeAdapter(int)

# A slow machine must not fail a test. Tests have a separate timeout.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

#: More objects than the tests of a module keep, and fewer than the imports of a module of tests create.
MANY_OBJECTS = 100_000


@pytest.fixture(autouse=True, scope="module")
def _no_blocking_calls_on_the_loop() -> Iterator[None]:
    """Have a blocking call on any loop fail. It replaces 58 functions, so it does so once for all tests of a module."""
    with blockbuster_ctx() as watch:
        for name in ("connect", "sendall", "recv"):  # this function blocks the loop on purpose
            watch.functions[f"socket.socket.{name}"].can_block_in("scripted_server.py", "close_elsewhere")
        yield


@pytest.fixture(autouse=True, scope="module")
def _frozen_heap() -> None:
    """Exclude all tests and imported modules from garbage collection, which would block a loop for half a second."""
    # For the first module, after a test that has unfrozen the heap, and when as many objects again have been imported.
    # `gc.get_freeze_count` would visit each frozen object.
    if len(gc.get_objects(generation=2)) > MANY_OBJECTS:
        gc.collect()
        gc.freeze()


@pytest.fixture
async def server_view(zookeeper: str) -> AsyncIterator[Observer]:
    """An independent client's view of the znodes on the shared server."""
    async with observer(zookeeper) as view:
        yield view


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """The certificates of an authority, a server and a client."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def quick_command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the command, whose calls do not have to start Python."""
    with started(tmp_path_factory.mktemp("command")) as folder:
        yield folder


@pytest.fixture
def terminal() -> Iterator[None]:
    """Have a closing terminal and Ctrl-C end the test's processes, even for tests under nohup or in the background."""
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGHUP, hangup)
    signal.signal(signal.SIGINT, interrupt)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Suspend garbage collection while tests are collected, because almost nothing becomes garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """Run slow tests first, and the modules that also have slow tests first if ``-m 'not slow'`` removes these."""
    slow = with_slow_tests(items)
    yield
    slowest_first(items, slow)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scopes | None:
    """Have `order` distribute the modules among workers."""
    return Scopes(config, log) if config.getvalue("dist") == "loadscope" else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the figures that tests have recorded with ``record_property("figures", ...)``."""
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.getreports(outcome)]
    figures = [value for report in reports for name, value in report.user_properties if name == "figures"]
    if figures:
        terminalreporter.section("figures")
    for line in figures:
        terminalreporter.line(str(line))
