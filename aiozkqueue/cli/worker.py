"""`aiozkqueue worker`: a user's listeners as a service, stopped by signals and watched over HTTP."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import traceback
from contextlib import AsyncExitStack
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

import aiozkqueue as zq
from aiozkqueue.cli import output
from aiozkqueue.cli.arguments import LogConfig, LogFormat, LogLevel
from aiozkqueue.cli.connection import Connection, with_connection
from aiozkqueue.cli.exits import Exit, status_of_child
from aiozkqueue.cli.listening import listening_at
from aiozkqueue.cli.logs import start_logs
from aiozkqueue.cli.times import TIME, parse_duration
from aiozkqueue.extras import needs
from aiozkqueue.session.handler import check_handler
from aiozkqueue.worker import (
    Announced,
    Health,
    Stops,
    UntilIdle,
    UserCodeError,
    dumping,
    load,
    opened,
    reloading,
    settled_heap,
    stop_signals,
    supervise,
    type_of_deliveries,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from aiozkqueue.worker.health import Metrics

Loop = Literal["auto", "asyncio", "uvloop"]

#: An environment variable of the processes of a worker that has several: their lines of text name the process.
_SHARED: Final = "AIOZKQUEUE_SHARED_STDERR"


@with_connection
def worker(
    connection: Connection,
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:NAME",
            help="An App, a function that returns listeners, or a handler.",
        ),
    ],
    queue: Annotated[
        str | None,
        typer.Option(
            "--queue",
            "-q",
            metavar="QUEUE",
            help="The queue; MODULE:NAME is then a handler.",
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            "-c",
            min=1,
            help="Messages of --queue at once. [dim]\\[default: 1][/dim]",
        ),
    ] = None,
    drain_timeout: Annotated[
        float,
        typer.Option(
            "--drain-timeout",
            parser=parse_duration,
            metavar=TIME,
            help="How long handlers may run after a stop.",
        ),
    ] = 25,
    until_idle: Annotated[
        float | None,
        typer.Option(
            "--until-idle",
            parser=parse_duration,
            metavar=TIME,
            help="End after this time without a message.",
        ),
    ] = None,
    health_port: Annotated[
        int | None,
        typer.Option("--health-port", min=0, max=65535, help="The port of /live, /ready and /metrics; 0: free."),
    ] = None,
    health_host: Annotated[
        str, typer.Option("--health-host", help="The address of --health-port; 0.0.0.0: all.")
    ] = "127.0.0.1",
    reload: Annotated[bool, typer.Option("--reload", help="Restart when Python files here change.")] = False,
    processes: Annotated[
        int,
        typer.Option(
            "--processes",
            min=1,
            help="The number of worker processes.",
        ),
    ] = 1,
    loop: Annotated[Loop, typer.Option("--loop", help="auto: uvloop if it is installed.")] = "auto",
    log_level: LogLevel = "info",
    log_format: LogFormat = "text",
    log_config: LogConfig = None,
) -> Exit:
    """Run an application or listeners until SIGTERM or SIGINT; then let their handlers finish.

    MODULE:NAME is an aiozkqueue.App; or a function that takes the session, and returns listeners or a context manager
    that yields them; or, with --queue, a handler, whose annotation Delivery[T] is the type of the payload. The
    connection options replace those of an App. A killed process is replaced; process n has the health port plus n - 1.
    A second signal cancels the handlers and releases their messages. The exit status is 0 after a signal; otherwise
    it is that of the error of the listener that stopped.

    Examples:
    [dim]$ aiozkqueue worker shop:app
    $ aiozkqueue worker shop.workers:listeners --health-port 8081
    $ aiozkqueue worker shop.workers:bill --queue orders --concurrency 8[/dim]
    """
    if until_idle is not None and not 0 < until_idle < inf:
        message = "--until-idle: give a duration above 0, such as 30"
        raise typer.BadParameter(message)
    start_logs(log_level, log_format, log_config, several=processes > 1 or _SHARED in os.environ)
    _find_modules_of(Path.cwd())
    if reload:
        if processes > 1:
            message = "--reload is for development, with one process: omit --processes"
            raise typer.BadParameter(message)
        return status_of_child(asyncio.run(reloading(_own_command("--reload"), Path.cwd())))
    if processes > 1:
        return asyncio.run(_serve_in(processes, health_host, health_port))
    try:
        found = load(target)
        factory = _factory(found, target, queue, concurrency, drain_timeout)
        opening = connection.open_app(found) if isinstance(found, zq.App) else connection.open()
        with asyncio.Runner(loop_factory=_loop_factory(loop)) as runner:
            return runner.run(_serve(opening, factory, (health_host, health_port), drain_timeout, until_idle))
    except UserCodeError as error:
        traceback.print_exception(error.__cause__)
        output.note(str(error))
        return Exit.NOTHING


async def _serve_in(processes: int, health_host: str, health_port: int | None) -> Exit:
    """Run this command in several processes; fail before they start if one of their health ports cannot be used."""
    async with AsyncExitStack() as stack:
        for number in range(processes if health_port else 0):
            port = (health_port or 0) + number
            with listening_at(f"--health-host {health_host} --health-port {port} (process {number + 1})"):
                await stack.enter_async_context(Health(health_host, port))
    os.environ[_SHARED] = "1"
    return status_of_child(await supervise([_command_of(number, health_port) for number in range(processes)]))


async def _serve(
    opening: AbstractAsyncContextManager[zq.QueueSession],
    factory: Callable[[zq.QueueSession], object],
    health_at: tuple[str, int | None],
    drain_timeout: float,
    until_idle: float | None,
) -> Exit:
    """Run the services of a session until a signal arrives, or until they are idle."""
    stops = Stops()
    stops.handle()  # before there are services, too: the first process of a container only ends by handled signals
    try:
        await _run(opening, factory, health_at, drain_timeout, until_idle, stops)
    except asyncio.CancelledError:
        if not stops.requested:
            raise
    return Exit.OK


async def _run(
    opening: AbstractAsyncContextManager[zq.QueueSession],
    factory: Callable[[zq.QueueSession], object],
    health_at: tuple[str, int | None],
    drain_timeout: float,
    until_idle: float | None,
    stops: Stops,
) -> None:
    host, port = health_at
    async with AsyncExitStack() as stack:
        health = Health(host, port or 0)
        if port is not None:
            with listening_at(f"--health-host {host} --health-port {port}"):
                await stack.enter_async_context(health)
            output.note(f"health at http://{health.address}")
        stack.enter_context(dumping())
        session = await stack.enter_async_context(opening)
        services = await stack.enter_async_context(opened(factory, session))
        health.watch(session)
        if port is not None:
            health.measure(_metrics(session))
        stack.enter_context(settled_heap())
        running = [health.reporting(Announced(service)) for service in services]
        if until_idle is not None:
            listeners: list[zq.Listener[Any]] = [service for service in services if isinstance(service, zq.Listener)]
            running.append(UntilIdle(session, until_idle, listeners, [*running]))
        try:
            await zq.run(*running, signals=stop_signals(), drain_timeout=drain_timeout)
        finally:
            stops.handle()


def _own_command(*without: str) -> list[str]:
    """Return the command of this process, without these switches."""
    return [sys.executable, "-m", "aiozkqueue", *(argument for argument in sys.argv[1:] if argument not in without)]


def _command_of(number: int, health_port: int | None) -> list[str]:
    """Return the command of one of several processes. Of an option that is given twice, the last one counts."""
    health = [] if not health_port else ["--health-port", str(health_port + number)]
    return [*_own_command(), "--processes", "1", *health]


def _loop_factory(loop: Loop) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the function that makes the event loop; None: asyncio's own. Raises: MissingExtraError."""
    if loop == "asyncio" or (loop == "auto" and find_spec("uvloop") is None):
        return None
    with needs("uvloop"):
        import uvloop  # noqa: PLC0415 - an extra

    return uvloop.new_event_loop


def _find_modules_of(folder: Path) -> None:
    """Make Python search a folder for modules, before installed packages and after the standard library."""
    here = str(folder)
    if here not in sys.path:
        installed = (index for index, path in enumerate(sys.path) if Path(path).name.endswith("-packages"))
        sys.path.insert(next(installed, len(sys.path)), here)


def _metrics(session: zq.QueueSession) -> Metrics | None:
    try:
        from aiozkqueue.metrics import collector  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    return collector(session)


def _factory(
    function: zq.App | Callable[..., Any], target: str, queue: str | None, concurrency: int | None, drain_timeout: float
) -> Callable[[zq.QueueSession], object]:
    """Return the function that creates the services: the user's, or one that creates a listener for a handler."""
    if isinstance(function, zq.App):
        if queue is not None or concurrency is not None:
            message = "--queue and --concurrency are for a handler: an application declares its queues itself"
            raise typer.BadParameter(message)
        return function.services
    if queue is None:
        if concurrency is not None:
            message = "--concurrency requires --queue: a function that returns listeners sets their concurrency itself"
            raise typer.BadParameter(message)
        if not _takes_session_alone(function):
            message = f"{target!r} is not a function of the session alone; for a handler, name its queue with --queue"
            raise typer.BadParameter(message)
        return function
    check_handler(function)
    type_: Any = type_of_deliveries(function)

    def listener(session: zq.QueueSession) -> object:
        return session.listener(
            session.queue(queue, type_), function, concurrency=concurrency or 1, drain_timeout=drain_timeout
        )

    return listener


def _takes_session_alone(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(object())
    except TypeError:
        return False
    except (ValueError, NameError):  # no signature, or one with names for type checkers
        return True
    return True
