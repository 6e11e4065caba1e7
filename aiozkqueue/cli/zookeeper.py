"""`aiozkqueue zookeeper`: a real server for development, from wheels only."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from aiozkqueue.cli import output
from aiozkqueue.cli.arguments import AsJson
from aiozkqueue.cli.exits import Exit
from aiozkqueue.cli.signals import drain_on_signals
from aiozkqueue.testing import EmbeddedEnsemble, EmbeddedZooKeeper

# Seconds between two checks that the servers still run.
_POLL: Final = 0.5


def zookeeper(
    ensemble: Annotated[bool, typer.Option("--ensemble", help="Run an ensemble of three servers.")] = False,
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65533, help="The port of the first server; 0 uses free ports.")
    ] = 2181,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            file_okay=False,
            help="Keep the data in this folder; without it, the data is deleted when the server stops.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> Exit:
    """Run a real ZooKeeper server in the foreground.

    Prints its address and stops on SIGINT or SIGTERM. Needs the extra [bold]embedded[/bold], but
    no Java and no Docker. It is for development: it listens on 127.0.0.1 only.

    Examples:
    [dim]$ aiozkqueue zookeeper --data-dir ./zookeeper-data
    $ aiozkqueue zookeeper --ensemble --port 0 --json[/dim]
    """
    kind = EmbeddedEnsemble if ensemble else EmbeddedZooKeeper
    return asyncio.run(_serve(kind(data_dir=data_dir, port=port or None), as_json=as_json))


async def _serve(servers: EmbeddedEnsemble, *, as_json: bool) -> Exit:
    stop = asyncio.Event()
    drain_on_signals(stop.set)
    async with servers:
        if as_json:
            output.print_json({"hosts": servers.hosts})
        else:
            sys.stdout.write(f"{servers.hosts}\n")
            sys.stdout.flush()
        while all(node.running for node in servers.nodes):
            try:
                await asyncio.wait_for(stop.wait(), _POLL)
            except TimeoutError:
                continue
            return Exit.OK
        output.note("a server stopped unexpectedly")
        return Exit.NOTHING
