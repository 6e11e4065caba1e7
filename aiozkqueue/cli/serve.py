"""`aiozkqueue serve`: the queues over HTTP."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated, Final, Self
from urllib.parse import urlsplit

import typer

from aiozkqueue.cli import output
from aiozkqueue.cli.arguments import LogConfig, LogFormat, LogLevel
from aiozkqueue.cli.connection import Connection, connected
from aiozkqueue.cli.exits import Exit
from aiozkqueue.cli.listening import listening_at
from aiozkqueue.cli.logs import start_logs
from aiozkqueue.extras import needs
from aiozkqueue.http.listening import address_of, listen
from aiozkqueue.session.internals import core_of
from aiozkqueue.worker.heap import settled_heap
from aiozkqueue.zookeeper import State

if TYPE_CHECKING:
    from types import TracebackType

    from aiozkqueue.http.server import Server

_EMODB: Final = "EmoDB's clients"
_PROXIES: Final = "Proxies and names"


@connected
async def serve(
    connection: Connection,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="The port; 0 uses a free port.")] = 8080,
    anonymous: Annotated[
        list[str] | None,
        typer.Option(
            "--anonymous", metavar="PERMISSION", help="A permission for requests without a key; may be repeated."
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate",
            min=0.1,
            help="Requests per second of a key or an address. [dim]\\[default: no limit][/dim]",
        ),
    ] = None,
    separate_purge: Annotated[
        bool, typer.Option("--separate-purge", help="Purging needs the permission purge, instead of poll.")
    ] = False,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            help="Register under this cluster name, so that EmoDB's clients find the server.",
            rich_help_panel=_EMODB,
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            "--advertise",
            metavar="HOST:PORT",
            help="The address by which clients reach this server.",
            rich_help_panel=_EMODB,
        ),
    ] = None,
    advertise_admin: Annotated[
        str | None,
        typer.Option(
            "--advertise-admin",
            metavar="HOST:PORT",
            help="The admin port's address for clients. [dim]\\[default: the host of --advertise, --admin-port][/dim]",
            rich_help_panel=_EMODB,
        ),
    ] = None,
    admin_port: Annotated[
        int | None,
        typer.Option(
            "--admin-port",
            min=0,
            max=65535,
            help="The port of /healthcheck, /live and /ready. [dim]\\[default: --port + 1][/dim]",
        ),
    ] = None,
    keep_alive: Annotated[
        int,
        typer.Option(
            "--keep-alive",
            min=1,
            max=86_400,
            help="Seconds to keep an idle connection; more than the proxies and clients use.",
            rich_help_panel=_PROXIES,
        ),
    ] = 75,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-host",
            metavar="NAME",
            help="A name by which requests without a key may call this server; may be repeated, * is any. "
            "[dim]\\[default: addresses, names without a dot, --advertise][/dim]",
            rich_help_panel=_PROXIES,
        ),
    ] = None,
    forwarded_allow_ips: Annotated[
        str,
        typer.Option(
            "--forwarded-allow-ips",
            metavar="ADDRESS,…",
            envvar="FORWARDED_ALLOW_IPS",
            help="Addresses or networks of proxies to trust for X-Forwarded-For and X-Forwarded-Proto; * trusts all.",
            rich_help_panel=_PROXIES,
        ),
    ] = "127.0.0.1",
    root_path: Annotated[
        str, typer.Option("--root-path", help="The path prefix that a proxy adds.", rich_help_panel=_PROXIES)
    ] = "",
    log_level: LogLevel = "info",
    log_format: LogFormat = "text",
    log_config: LogConfig = None,
) -> Exit:
    """Serve the queues and the dashboard over HTTP until SIGINT or SIGTERM.

    Exit status 4: ZooKeeper refused the credentials, at the start or later: start it again with the new ones.

    Needs the extra [bold]http[/bold]. Create a key first: requests without a key have no permissions.

    Examples:
    [dim]$ aiozkqueue keys create orders-service --allow 'queue|post|orders*'
    $ aiozkqueue serve --hosts zk1:2181 --host 0.0.0.0 --port 8080[/dim]
    """
    start_logs(log_level, log_format, log_config)
    with needs("http"):
        from aiozkqueue.http import Settings, create_app  # noqa: PLC0415 - an extra
        from aiozkqueue.http import server as servers  # noqa: PLC0415 - an extra
        from aiozkqueue.http.discovery import Registration, registered  # noqa: PLC0415 - an extra
    named = [text for text in (advertise, *(allowed_host or ())) if text]
    settings = Settings(
        anonymous=tuple(anonymous or ()),
        hosts=[_host_of(text) for text in named],
        rate=rate,
        separate_purge=separate_purge,
    )
    # Open the sockets and the session first: uvicorn ends the process if its own startup fails.
    with _Stopping() as stopping:
        async with AsyncExitStack() as stack:
            listening = stack.enter_context(_listening("--port", host, port))
            asking = stack.enter_context(_admin_listening(host, port, admin_port))
            session = await stack.enter_async_context(connection.open())
            lister = await stack.enter_async_context(connection.open())
            address = address_of(listening)
            app = create_app(lambda: nullcontext(session), settings, listing=lambda: nullcontext(lister))
            main = servers.server(
                app,
                host=host,
                port=port,
                root_path=root_path,
                keep_alive=keep_alive,
                forwarded_allow_ips=forwarded_allow_ips,
            )
            stopping.call = main.stop

            def state_changed(state: State, _: int) -> None:
                if state is State.FAILED:  # permanently; the log has the reason
                    main.stop()

            stack.callback(core_of(session).zookeeper.on_state(state_changed))
            serving = asyncio.create_task(main.serve([listening]))
            await _started(main, serving)
            if main.started and asking is not None:
                admin = servers.admin_server(app)
                stack.push_async_callback(_ended, admin, asyncio.create_task(admin.serve([asking])))
            if main.started and cluster is not None:
                own = advertise or address
                admin_address = address if asking is None else address_of(asking)
                registration = Registration(cluster, own, advertise_admin or _as_seen(own, admin_address))
                main.withdraw = await stack.enter_async_context(registered(core_of(session), registration))
            if main.started:
                stack.enter_context(settled_heap())
                sys.stdout.write(f"http://{address}\n")
                sys.stdout.flush()
            await serving
            if core_of(session).zookeeper.state is State.FAILED:
                return Exit.REFUSED
            return Exit.OK if main.started else Exit.NOTHING
    return Exit.OK  # a signal has stopped it before it began


async def _started(server: Server, serving: asyncio.Task[None]) -> None:
    while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn reports its start by this flag only
        await asyncio.sleep(0.01)


async def _ended(server: Server, serving: asyncio.Task[None]) -> None:
    server.stop()
    await serving


class _Stopping:
    """Handles SIGTERM and SIGINT during its block: each calls ``call``, or ends the block while ``call`` is not set."""

    def __init__(self) -> None:
        self.call: Callable[[], None] | None = None
        self._cancelled = False
        self._task = asyncio.current_task()

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._received)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)
        return self._cancelled and isinstance(error, asyncio.CancelledError)

    def _received(self) -> None:
        if self.call is not None:
            self.call()
        elif self._task is not None:
            self._cancelled = True
            self._task.cancel()


def _listening(option: str, host: str, port: int) -> socket.socket:
    """Return a socket that listens on the address. Raises: CommandFailedError."""
    with listening_at(f"--host {host} {option} {port}"):
        return listen(host, port)


@contextmanager
def _admin_listening(host: str, port: int, admin_port: int | None) -> Iterator[socket.socket | None]:
    """Yield a socket for the admin port; None if no admin port is given and the port after the main one is in use."""
    if admin_port is not None:
        listening = _listening("--admin-port", host, admin_port)
    else:
        try:
            listening = listen(host, port + 1 if port else 0)
        except (OSError, OverflowError) as error:
            output.note(f"no admin port: {port + 1} cannot be used ({error}); choose another with --admin-port")
            yield None
            return
    with listening:
        yield listening


def _host_of(address: str) -> str:
    """Return the host of ``host`` or ``host:port``."""
    return urlsplit(f"//{address}").hostname or address


def _as_seen(address: str, admin_address: str) -> str:
    """Return the admin address with the host of the main address, by which clients reach this server."""
    return f"{address.rpartition(':')[0] or address}:{admin_address.rpartition(':')[2]}"
