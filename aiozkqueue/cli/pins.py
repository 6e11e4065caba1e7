"""`aiozkqueue pins`: the pins that protect histories from clean-up, and the removal of an interrupted audit's pin."""

from __future__ import annotations

from typing import Annotated

import typer

from aiozkqueue.admin import Pin
from aiozkqueue.cli import output
from aiozkqueue.cli.arguments import AsJson, SomeQueues, Yes
from aiozkqueue.cli.connection import Connection, connected
from aiozkqueue.cli.exits import Exit


@connected
async def list_(connection: Connection, queues: SomeQueues = None, as_json: AsJson = False) -> Exit:
    """List the pins that protect histories from clean-up, and their age.

    Exit status 1: there are none.

    Example:
    [dim]$ aiozkqueue pins list[/dim]
    """
    async with connection.open() as session:
        found, unread = list[Pin](), output.Unread()
        for name in queues or await session.queues():
            with unread.kept():
                found += await session.queue(name).admin.pins()
    if as_json:
        for pin in found:
            output.print_json(output.record_of(pin))
    elif found:
        output.print_table(
            ["queue", "name", "keeps from", "set"],
            [(pin.queue, pin.name, output.when(pin.since), output.when(pin.changed)) for pin in found],
        )
    unread.report()
    return output.status_of_list(found, f"there are no pins below {connection.root}")


@connected
async def remove(
    connection: Connection,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The pin's name as `pins list` shows it; an audit's is 'audit'.")
    ],
    queues: SomeQueues = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> Exit:
    """Remove a pin, which abandons an interrupted audit.

    Exit status 1: the pin does not exist.

    If you can, run the audit again instead: it then completes, and moves no record twice.

    Example:
    [dim]$ aiozkqueue pins remove audit --yes[/dim]
    """
    output.confirm(f"Remove the pin {name!r}, which protects histories?", yes=yes)
    async with connection.open() as session:
        removed, unread = list[str](), output.Unread()
        for queue in queues or await session.queues():
            with unread.kept():
                removed += [queue] if await session.queue(queue).admin.unpin(name) else []
    if as_json:
        output.print_json({"name": name, "queues": list(removed)})
    else:
        output.note(f"removed the pin {name!r} from {', '.join(removed)}" if removed else f"there is no pin {name!r}")
    unread.report()
    return Exit.OK if removed else Exit.NOTHING
