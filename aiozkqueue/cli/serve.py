"""`aiozkqueue serve` and `aiozkqueue keys`: the queues over HTTP, and who may use them."""

from __future__ import annotations

import asyncio
import socket
import sys
from contextlib import AsyncExitStack, nullcontext
from typing import Annotated

import typer

from aiozkqueue.cli import output
from aiozkqueue.cli.arguments import AsJson
from aiozkqueue.cli.connection import Connection, connected
from aiozkqueue.cli.exits import CommandFailedError, Exit
from aiozkqueue.extras import needs
from aiozkqueue.http.keys import Keys
from aiozkqueue.http.tokens import MessageIds


@connected
async def serve(
    connection: Connection,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="0 takes a free one.")] = 8080,
    anonymous: Annotated[
        list[str] | None,
        typer.Option("--anonymous", metavar="PERMISSION", help="What requests without a key may do; may be repeated."),
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.1, help="Requests a second for each key. [dim]default: any[/dim]")
    ] = None,
    separate_purge: Annotated[
        bool, typer.Option("--separate-purge", help="Emptying a queue needs the permission purge, not poll.")
    ] = False,
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="Register for discovery by EmoDB's clients, as a server of this.")
    ] = None,
    advertise: Annotated[
        str | None, typer.Option("--advertise", metavar="HOST:PORT", help="How clients reach this server.")
    ] = None,
    root_path: Annotated[str, typer.Option("--root-path", help="The path before ours, of a proxy.")] = "",
) -> Exit:
    """Serve the queues over HTTP until SIGINT or SIGTERM: EmoDB's QueueService, and the dashboard.

    Needs the extra [bold]http[/bold]. Make a key first: without one nobody may do anything.

    [dim]aiozkqueue keys create orders-service --allow 'queue|post|orders*'
    aiozkqueue serve --hosts zk1:2181 --host 0.0.0.0 --port 8080[/dim]
    """
    with needs("http"):
        from aiozkqueue.http import Settings, create_app  # noqa: PLC0415 - an extra
        from aiozkqueue.http.discovery import Registration, registered  # noqa: PLC0415 - an extra
        from aiozkqueue.http.server import server as server_of  # noqa: PLC0415 - an extra
    settings = Settings(anonymous=tuple(anonymous or ()), rate=rate, separate_purge=separate_purge)
    # Socket and session come first: uvicorn ends the process when it cannot have what it begins with.
    async with AsyncExitStack() as stack:
        listening = stack.enter_context(_listening(host, port))
        session = await stack.enter_async_context(connection.open())
        address = _address(listening)
        if cluster is not None:
            own = advertise or address
            await stack.enter_async_context(registered(session.engine, Registration(cluster, own, own)))
        app = create_app(lambda: nullcontext(session), settings)
        server = server_of(app, host=host, port=port, root_path=root_path)
        serving = asyncio.create_task(server.serve([listening]))
        while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn tells by this flag alone
            await asyncio.sleep(0.01)
        if server.started:
            sys.stdout.write(f"http://{address}\n")
            sys.stdout.flush()
        await serving
    return Exit.OK if server.started else Exit.NOTHING


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket bound to the address. Raises: CommandFailedError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        msg = f"--host {host} --port {port}: {error.strerror}"
        raise CommandFailedError(msg) from error


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@connected
async def create(
    connection: Connection,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    allow: Annotated[
        list[str],
        typer.Option("--allow", metavar="PERMISSION", help="queue|VERB|NAME, with * for anything; may be repeated."),
    ],
) -> Exit:
    """Make a key, and print it alone on the last line: nobody can tell it again.

    [dim]KEY=$(aiozkqueue keys create orders --allow 'queue|post|orders*' --allow 'queue|poll|orders*')[/dim]
    """
    async with connection.open() as session:
        text = await Keys(session.engine).create(name, allow)
    output.note(f"key {name!r} may {', '.join(allow)}")
    sys.stdout.write(f"{text}\n")
    return Exit.OK


@connected
async def list_(connection: Connection, as_json: AsJson = False) -> Exit:
    """List the keys by name, with what each may do, not the keys: they are not stored. Fails with 1 when there is none.

    [dim]aiozkqueue keys list --json[/dim]
    """
    async with connection.open() as session:
        found = await Keys(session.engine).all()
    if as_json:
        for one in found:
            output.print_json({"name": one.name, "allow": list(one.allow)})
    elif found:
        output.print_table(["name", "may"], [(one.name, ", ".join(one.allow)) for one in found])
    return Exit.OK if found else Exit.NOTHING


@connected
async def revoke(connection: Connection, name: Annotated[str, typer.Argument(metavar="NAME")]) -> Exit:
    """Revoke a key: within seconds no server knows it any more. Fails with 1 when there is none of this name.

    [dim]aiozkqueue keys revoke orders[/dim]
    """
    async with connection.open() as session:
        revoked = await Keys(session.engine).revoke(name)
    output.note(f"key {name!r} is revoked" if revoked else f"there is no key {name!r}")
    return Exit.OK if revoked else Exit.NOTHING


@connected
async def rotate(connection: Connection) -> Exit:
    """Sign message ids with a new secret. Ids of the secret before stay valid until the next rotation.

    [dim]aiozkqueue keys rotate[/dim]
    """
    async with connection.open() as session:
        await MessageIds(session.engine).rotate()
    output.note("message ids are signed with a new secret; earlier ids stay valid until the next rotation")
    return Exit.OK
