"""`aiozkqueue worker`: a user's listeners as a service, stopped by signals and watched over HTTP."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import aiozkqueue as zq
from aiozkqueue.cli import output
from aiozkqueue.cli.connection import Connection, connected
from aiozkqueue.cli.durations import TIME, parse_duration
from aiozkqueue.cli.exits import Exit, status_of_child
from aiozkqueue.cli.logs import log_to_stderr
from aiozkqueue.worker import Health, announce, dumping, load, opened, reloading, settled_heap, type_of_deliveries

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozkqueue.worker.health import Metrics

Level = Literal["debug", "info", "warning", "error"]


@connected
async def worker(
    connection: Connection,
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:NAME",
            help="A function of the session that returns a listener, several, or a context manager that yields them; "
            "or, with --queue, a handler.",
        ),
    ],
    queue: Annotated[
        str | None,
        typer.Option(
            "--queue",
            "-q",
            metavar="QUEUE",
            help="MODULE:NAME is a handler: call it for each message of this queue. The annotation Delivery[T] of its "
            "argument says the type of the payload.",
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            "-c",
            min=1,
            help="The number of messages handled at the same time, with --queue. [dim]\\[default: 1][/dim]",
        ),
    ] = None,
    drain_timeout: Annotated[
        float,
        typer.Option(
            "--drain-timeout",
            parser=parse_duration,
            metavar=TIME,
            help="How long handlers may take to finish after a stop.",
        ),
    ] = 25,
    health_port: Annotated[
        int | None,
        typer.Option(
            "--health-port", min=0, max=65535, help="The port of /live, /ready and /metrics; 0 uses a free port."
        ),
    ] = None,
    health_host: Annotated[
        str, typer.Option("--health-host", help="The address of the health endpoint; 0.0.0.0 in a container.")
    ] = "127.0.0.1",
    reload: Annotated[
        bool, typer.Option("--reload", help="For development: restart when Python files below this directory change.")
    ] = False,
    log_level: Annotated[
        Level, typer.Option("--log-level", help="The lowest level that is logged to stderr.")
    ] = "info",
) -> Exit:
    """Run listeners until SIGTERM or SIGINT; then let their handlers finish.

    A second signal cancels the handlers and releases their messages immediately.
    SIGUSR1, or `aiozkqueue dump`, prints where every handler waits.
    The exit status is 0 after a signal; otherwise it names the error of the listener that stopped.

    Examples:
    [dim]$ aiozkqueue worker shop.workers:listeners --health-port 8081
    $ aiozkqueue worker shop.workers:bill --queue orders --concurrency 8[/dim]
    """
    log_to_stderr(log_level)
    _find_modules_of(Path.cwd())
    if reload:
        own = [argument for argument in sys.argv[1:] if argument != "--reload"]
        return status_of_child(await reloading([sys.executable, "-m", "aiozkqueue.cli", *own], Path.cwd()))
    factory = _factory(load(target), queue, concurrency, drain_timeout)
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - this is a coroutine
    async with AsyncExitStack() as stack:
        health = Health(health_host, 0 if health_port is None else health_port)
        if health_port is not None:
            await stack.enter_async_context(health)
            output.note(f"health at http://{health.address}")
        # Until services run, no message is being handled; the first process of a container only ends by signals that it
        # handles.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        stack.enter_context(dumping())
        session = await stack.enter_async_context(connection.open())
        services = await stack.enter_async_context(opened(factory, session))
        health.watch(session)
        if health_port is not None:
            health.measure(_metrics(session))
        stack.enter_context(settled_heap())
        announce(services)
        await zq.run(*map(health.told, services), drain_timeout=drain_timeout)
    return Exit.OK


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
    function: Callable[..., Any], queue: str | None, concurrency: int | None, drain_timeout: float
) -> Callable[[zq.QueueSession], object]:
    """Return the function that creates the services: the user's, or one that creates a listener for a handler."""
    if queue is None:
        if concurrency is not None:
            message = "--concurrency requires --queue: a function that returns listeners sets their concurrency itself"
            raise typer.BadParameter(message)
        return function
    type_: Any = type_of_deliveries(function)

    def listener(session: zq.QueueSession) -> object:
        return session.listener(
            session.queue(queue, type_), function, concurrency=concurrency or 1, drain_timeout=drain_timeout
        )

    return listener
