"""A worker process of the demo: it takes lines and puts results, each pair in one transaction."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Annotated

import anyio
import typer

from aiozkqueue.cli.connection import Connection, connected
from aiozkqueue.cli.demo.records import Line, Result, transformed
from aiozkqueue.cli.exits import Exit
from aiozkqueue.cli.output import print_json


@connected
async def demo_worker(
    connection: Connection,
    name: str,
    lines: Annotated[str, typer.Argument(help="The queue to take from.")],
    results: Annotated[str, typer.Argument(help="The queue to put to.")],
    hold_at: Annotated[int, typer.Option(help="Stop inside the transaction of this delivery, to be killed.")] = 0,
) -> Exit:
    """Process lines for the demo: ``begin`` and ``end`` arrive on stdin, progress goes to stdout."""
    words = await _stdin()
    async with connection.open() as session:
        source, sink = session.queue(lines, Line), session.queue(results, Result)
        print_json({"event": "ready", "pid": os.getpid()})
        await _next_command(words)
        ended = asyncio.Event()
        async with source.consume() as deliveries, anyio.create_task_group() as tasks:

            async def end_on_command() -> None:
                await _next_command(words)
                ended.set()
                deliveries.stop()

            tasks.start_soon(end_on_command)
            count = 0
            async for delivery in deliveries:
                handed_over = time.monotonic()
                count += 1
                async with delivery:
                    line = delivery.value
                    text, number_of_words = transformed(line.text)
                    delivery.put(
                        sink,
                        Result(
                            number=line.number, text=text, words=number_of_words, worker=name, handed_over=handed_over
                        ),
                    )
                    if count == 1:
                        print_json({"event": "started"})
                    if count == hold_at:
                        print_json({"event": "holding", "number": line.number, "id": delivery.id})
                        await ended.wait()
            tasks.cancel_scope.cancel()
    return Exit.OK


async def _stdin() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def _next_command(words: asyncio.StreamReader) -> None:
    if not await words.readline():
        # The parent and the server have ended, so nothing can be settled.
        os._exit(Exit.NOTHING)
