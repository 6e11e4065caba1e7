"""`aiozkqueue dump`: where the handlers of a worker wait."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from aiozkqueue.cli.exits import Exit
from aiozkqueue.cli.times import TIME, duration_from
from aiozkqueue.worker import ask


def dump(
    pid: Annotated[
        int, typer.Argument(min=1, metavar="PID", help="The process id of an `aiozkqueue worker` on this host.")
    ],
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", parser=duration_from(0, to=86_400), metavar=TIME, help="How long to wait for the answer."
        ),
    ] = 10,
) -> Exit:
    """Show where each task of a worker waits.

    Use it for stuck handlers, including those that block the event loop. It does not stop the worker.

    Examples:
    [dim]$ aiozkqueue dump $(pidof -s -x aiozkqueue)
    $ kubectl exec shop-worker-0 -- aiozkqueue dump 1[/dim]
    """
    sys.stdout.write(ask(pid, timeout=timeout))
    return Exit.OK
