"""The package's pytest plugin: fixtures for the tests of programs that use aiozkqueue. See `docs/testing.md`.

A test's sessions connect to the simulator, or with ``--aiozkqueue=server`` or the ini option
``aiozkqueue_server = server`` to a real server: the one named by ``AIOZKQUEUE_ZOOKEEPER`` (``host:port``, or a list);
otherwise a container, if a Docker engine answers and `testcontainers` is installed; otherwise the embedded server
(``aiozkqueue[embedded]``).

Every pytest run imports the plugin wherever the package is installed, so it is outside of the package: the import of
`aiozkqueue`, which takes a tenth of a second or more, is delayed until the first test that requests a fixture.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from aiozkqueue import QueueSession
    from aiozkqueue.testing import EmbeddedEnsemble, EmbeddedZooKeeper, QueueServer, ServerOptions, TestClock
    from aiozkqueue.testing import ZooKeeperProxy as Proxy

#: The variable that names the ZooKeeper to test against, ``host:port`` or a list.
ENVIRONMENT = "AIOZKQUEUE_ZOOKEEPER"

_KINDS = ("simulator", "server")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that selects the simulator or a server."""
    parser.getgroup("aiozkqueue").addoption(
        "--aiozkqueue",
        choices=_KINDS,
        default=None,
        help="what queue_server and queue_session are: the simulator in memory, or a real ZooKeeper",
    )
    parser.addini("aiozkqueue_server", "the default of --aiozkqueue: 'simulator' or 'server'", default="simulator")


@pytest.fixture
def queue_clock() -> TestClock:
    """The clock of this test's sessions: ``queue_clock.advance(60)`` moves it ahead and wakes its sleepers."""
    from aiozkqueue.testing import TestClock  # noqa: PLC0415 -- see the module's docstring

    return TestClock()


@pytest.fixture
def queue_server(request: pytest.FixtureRequest, queue_clock: TestClock) -> QueueServer:
    """The server of this test's sessions, without queues: ``async with queue_server.connect() as session``.

    The simulator or a real server, depending on ``--aiozkqueue`` or the ini option ``aiozkqueue_server``.
    """
    from aiozkqueue.testing.queue_server import RealServer, SimulatedServer  # noqa: PLC0415 -- as above

    kind = request.config.getoption("--aiozkqueue") or request.config.getini("aiozkqueue_server")
    if kind not in _KINDS:
        text = f"aiozkqueue_server = {kind!r}: give 'simulator' or 'server'"
        raise pytest.UsageError(text)
    if kind == "simulator":
        return SimulatedServer(queue_clock)
    return RealServer(request.getfixturevalue("zookeeper"), request.getfixturevalue("queue_root"), queue_clock)


@pytest.fixture
def queue_session(request: pytest.FixtureRequest) -> QueueSession:
    """A session on `queue_server`, on the test's own event loop and with `queue_clock`."""
    session: QueueSession = _on_the_tests_loop(request, "queue_session")
    return session


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[str]:
    """The connection string of a real ZooKeeper; one server for the whole run (for each worker under xdist)."""
    if named := os.environ.get(ENVIRONMENT):
        yield named
        return
    from aiozkqueue.testing.configuration import ServerOptions  # noqa: PLC0415 -- as above
    from aiozkqueue.testing.container import container, engine_answers  # noqa: PLC0415 -- as above
    from aiozkqueue.testing.runtime import ServerUnavailableError  # noqa: PLC0415 -- as above
    from aiozkqueue.testing.server import EmbeddedZooKeeper  # noqa: PLC0415 -- as above

    with ExitStack() as stack:
        if engine_answers():
            hosts = stack.enter_context(container())
        else:
            try:
                # Its data is removed after the run, so no write has to wait for the disk.
                hosts = stack.enter_context(EmbeddedZooKeeper(ServerOptions(fsync=False))).hosts
            except ServerUnavailableError as error:
                pytest.skip(f"no ZooKeeper: {ENVIRONMENT} is not set, no Docker engine answers, and {error}")
        yield hosts


@pytest.fixture
def queue_root(zookeeper: str) -> Iterator[str]:
    """A separate path for this test, for use as ``root``; its znodes are deleted after the test."""
    root = f"/test-{os.urandom(6).hex()}"
    yield root
    from aiozkqueue.testing.cleaning import delete_tree  # noqa: PLC0415 -- as above

    delete_tree(zookeeper, root)


@pytest.fixture
def zookeeper_proxy(request: pytest.FixtureRequest) -> Proxy:
    """A fault proxy in front of the server, on the test's own event loop; connect to `ZooKeeperProxy.hosts`."""
    proxy: Proxy = _on_the_tests_loop(request, "zookeeper_proxy")
    return proxy


@pytest.fixture(scope="session")
def embedded_server() -> Iterator[Callable[..., EmbeddedZooKeeper]]:
    """Starts embedded servers: ``embedded_server(ServerOptions(...))``. All are stopped at the end of the run."""
    from aiozkqueue.testing.configuration import ServerOptions  # noqa: PLC0415 -- as above
    from aiozkqueue.testing.runtime import ServerUnavailableError  # noqa: PLC0415 -- as above
    from aiozkqueue.testing.server import EmbeddedZooKeeper  # noqa: PLC0415 -- as above

    with ExitStack() as stack:

        def start(options: ServerOptions | None = None) -> EmbeddedZooKeeper:
            try:
                return stack.enter_context(EmbeddedZooKeeper(options or ServerOptions(fsync=False)))
            except ServerUnavailableError as error:
                pytest.skip(str(error))

        yield start


@pytest.fixture(scope="session")
def zookeeper_ensemble() -> Iterator[EmbeddedEnsemble]:
    """Three embedded servers that can be killed, paused and restarted. Restart those that you stop."""
    from aiozkqueue.testing.configuration import ServerOptions  # noqa: PLC0415 -- as above
    from aiozkqueue.testing.runtime import ServerUnavailableError  # noqa: PLC0415 -- as above
    from aiozkqueue.testing.server import EmbeddedEnsemble  # noqa: PLC0415 -- as above

    with ExitStack() as stack:
        try:
            ensemble = stack.enter_context(EmbeddedEnsemble(options=ServerOptions(heap=256, fsync=False)))
        except ServerUnavailableError as error:
            pytest.skip(str(error))
        yield ensemble


# The plugin that made an async fixture runs it on that plugin's loop. Which plugin runs a test is known only when the
# test requests the fixture, so pytest-asyncio, whose strict mode takes only its own fixtures, and anyio have one each.
# pytest-asyncio has a loop for each scope, and a fixture of it belongs to one scope, so it has one for each of these.


def _on_the_tests_loop(request: pytest.FixtureRequest, name: str) -> Any:  # noqa: ANN401 -- what that fixture gives
    if (mark := request.node.get_closest_marker("asyncio")) is not None:
        return request.getfixturevalue(f"_asyncio_{_loop_scope(request.config, mark)}_{name}")
    if "anyio_backend" not in request.fixturenames:
        pytest.fail(
            f"{name} is for async tests that pytest-asyncio or anyio's plugin runs; is the test marked? "
            "A test without its own event loop may use queue_server.",
            pytrace=False,
        )
    if (backend := request.getfixturevalue("anyio_backend_name")) != "asyncio":
        pytest.fail(f"{name}: aiozkqueue runs on asyncio; have anyio_backend return that, not {backend}", pytrace=False)
    return request.getfixturevalue(f"_anyio_{name}")


def _loop_scope(config: pytest.Config, mark: pytest.Mark) -> str:
    """The scope of the loop that pytest-asyncio runs a test on; ``scope`` is the old name of the argument."""
    marked: str | None = mark.kwargs.get("loop_scope") or mark.kwargs.get("scope")
    if marked is not None:
        return marked
    try:
        default: str = config.getini("asyncio_default_test_loop_scope")
    except ValueError:  # before pytest-asyncio 0.26
        default = "function"
    return default


def _make_queue_session(fixture: Callable[..., object]) -> object:
    async def queue_session(queue_server: QueueServer) -> AsyncIterator[QueueSession]:
        async with queue_server.connect() as session:
            yield session

    return fixture(queue_session)


def _make_zookeeper_proxy(fixture: Callable[..., object]) -> object:
    async def zookeeper_proxy(zookeeper: str) -> AsyncIterator[Proxy]:
        from aiozkqueue.testing.frames import ZooKeeperProxy  # noqa: PLC0415 -- as above

        async with ZooKeeperProxy(zookeeper) as proxy:
            yield proxy

    return fixture(zookeeper_proxy)


_anyio_queue_session = _make_queue_session(pytest.fixture)
_anyio_zookeeper_proxy = _make_zookeeper_proxy(pytest.fixture)
if find_spec("pytest_asyncio") is not None:
    import pytest_asyncio

    for _scope in ("function", "class", "module", "package", "session"):
        _on_its_loop = partial(pytest_asyncio.fixture, loop_scope=_scope)
        globals()[f"_asyncio_{_scope}_queue_session"] = _make_queue_session(_on_its_loop)
        globals()[f"_asyncio_{_scope}_zookeeper_proxy"] = _make_zookeeper_proxy(_on_its_loop)
