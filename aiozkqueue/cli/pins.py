"""`aiozkqueue pins`: what keeps clean-up from histories, and how that of an audit that never came back is given up."""

from __future__ import annotations

from typing import Annotated

import typer

from aiozkqueue.cli import output
from aiozkqueue.cli.arguments import AsJson, Yes
from aiozkqueue.cli.connection import Connection, connected
from aiozkqueue.cli.exits import Exit

_Queues = Annotated[list[str] | None, typer.Argument(metavar="[QUEUE…]", help="All, unless some are named.")]


@connected
async def list_(connection: Connection, queues: _Queues = None, as_json: AsJson = False) -> Exit:
    """Show what keeps clean-up from the history of which queue, and since when. Fails with 1 when nothing does.

    [dim]aiozkqueue pins list[/dim]
    """
    async with connection.open() as session:
        names = queues or await session.queues()
        found = [pin for name in names for pin in await session.queue(name).pins()]
    if as_json:
        for pin in found:
            output.print_json(
                {
                    "queue": pin.queue,
                    "name": pin.name,
                    "since": pin.since.isoformat(),
                    "changed": pin.changed.isoformat(),
                }
            )
    elif found:
        output.print_table(
            ["queue", "name", "keeps from", "set"],
            [(pin.queue, pin.name, output.when(pin.since), output.when(pin.changed)) for pin in found],
        )
    return Exit.OK if found else Exit.NOTHING


@connected
async def remove(
    connection: Connection,
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `pins list` shows it: audit, for an audit's.")],
    queues: _Queues = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> Exit:
    """Let clean-up have histories again; gives up an audit that was cut off. Fails with 1 when there is no such pin.

    Rather run that audit again, if you can: what it has moved then goes from the histories, and nothing is moved twice.

    [dim]aiozkqueue pins remove audit --yes[/dim]
    """
    output.confirm(f"Give up what {name!r} keeps of histories?", yes=yes)
    async with connection.open() as session:
        removed = [queue for queue in queues or await session.queues() if await session.queue(queue).unpin(name)]
    if as_json:
        output.print_json({"name": name, "queues": list(removed)})
    else:
        output.note(f"{name!r} taken off {', '.join(removed)}" if removed else f"nothing is kept by {name!r}")
    return Exit.OK if removed else Exit.NOTHING
