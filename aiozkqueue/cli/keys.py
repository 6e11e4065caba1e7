"""`aiozkqueue keys`: the API keys for HTTP, and the secrets of message ids."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from aiozkqueue.cli import output
from aiozkqueue.cli.arguments import AsJson
from aiozkqueue.cli.connection import Connection, connected
from aiozkqueue.cli.exits import Exit
from aiozkqueue.errors import AccessDeniedError
from aiozkqueue.http.core.keys import Keys
from aiozkqueue.http.core.tokens import MessageIds
from aiozkqueue.session.internals import core_of

_Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the key.")]


@connected
async def create(
    connection: Connection,
    name: _Name,
    allow: Annotated[
        list[str],
        typer.Option("--allow", metavar="PERMISSION", help="queue|VERB|NAME, with * for anything; may be repeated."),
    ],
    as_json: AsJson = False,
) -> Exit:
    """Create an API key and print it on the last line; it is shown only once.

    Warns if other keys cannot be read, because one of them may have the same name.

    Example:
    [dim]$ KEY=$(aiozkqueue keys create orders --allow 'queue|post|orders*' --allow 'queue|poll|orders*')[/dim]
    """
    async with connection.open() as session:
        text = await Keys(core_of(session)).create(name, allow)
    if as_json:
        output.print_json({"name": name, "allow": list(allow), "key": text})
    else:
        output.note(f"key {name!r} may {', '.join(allow)}")
        sys.stdout.write(f"{text}\n")
    return Exit.OK


@connected
async def list_(connection: Connection, as_json: AsJson = False) -> Exit:
    """List the API keys by name, with their permissions.

    Exit status 1: there are none.

    Example:
    [dim]$ aiozkqueue keys list --json[/dim]
    """
    async with connection.open() as session:
        unreadable: list[AccessDeniedError] = []
        found = await Keys(core_of(session)).all(unreadable)
    if as_json:
        for key in found:
            output.print_json({"name": key.name, "allow": list(key.allow)})
    elif found:
        output.print_table(["name", "may"], [(key.name, ", ".join(key.allow)) for key in found])
    output.Unread(unreadable).report()
    return output.status_of_list(found, f"there are no API keys below {connection.root}")


@connected
async def revoke(
    connection: Connection,
    name: _Name,
    as_json: AsJson = False,
) -> Exit:
    """Revoke an API key on all servers within seconds.

    Exit status 1: the key does not exist. Exit status 4: some keys cannot be read, and one of them may have this name.

    Example:
    [dim]$ aiozkqueue keys revoke orders[/dim]
    """
    async with connection.open() as session:
        unreadable: list[AccessDeniedError] = []
        revoked = await Keys(core_of(session)).revoke(name, unreadable)
    if as_json:
        output.print_json({"name": name, "revoked": revoked})
    elif revoked or not unreadable:
        output.note(f"key {name!r} is revoked" if revoked else f"there is no key {name!r}")
    output.Unread(unreadable).report()
    return Exit.OK if revoked else Exit.NOTHING


@connected
async def rotate(connection: Connection, as_json: AsJson = False) -> Exit:
    """Sign message ids with a new secret; the previous secret stays valid until the next rotation.

    Example:
    [dim]$ aiozkqueue keys rotate[/dim]
    """
    async with connection.open() as session:
        await MessageIds(core_of(session)).rotate()
    if as_json:
        output.print_json({"rotated": True})
    else:
        output.note("message ids are signed with a new secret; earlier ids stay valid until the next rotation")
    return Exit.OK
