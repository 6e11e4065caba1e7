"""`aiozkqueue consume`: payloads to stdout or to a command, each in a separate transaction."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Annotated, Final, TypeAlias

import typer
from anyio import to_thread

import aiozkqueue as zq
from aiozkqueue.cli import output
from aiozkqueue.cli.arguments import AsJson
from aiozkqueue.cli.asked import AskedQueue, asks_queue
from aiozkqueue.cli.connection import Connection, connected
from aiozkqueue.cli.exits import CommandFailedError, Exit
from aiozkqueue.cli.filters import parse_filters
from aiozkqueue.cli.signals import drain_on_signals
from aiozkqueue.errors import NotFoundError
from aiozkqueue.queue.state import given_up
from aiozkqueue.session import left_open
from aiozkqueue.session.credentials import AUTH, AUTH_FILE
from aiozkqueue.session.internals import settle_failed, work_of
from aiozkqueue.wording import counted

_PREFETCH: Final = 32

# Returns None to commit, or the reason to roll back.
Handler: TypeAlias = Callable[[zq.Delivery[bytes]], Awaitable[str | None]]


@connected
@asks_queue
async def consume(
    connection: Connection,
    queue: AskedQueue,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more messages when the queue is empty.")] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="End after this number of messages.")
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(
            "--exec",
            metavar="COMMAND",
            help="Run this in a shell for each message, instead of printing it.",
        ),
    ] = None,
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="TAG<=VALUE",
            help="Take only messages whose tag matches: = > >= < <=.",
        ),
    ] = None,
    enums: Annotated[
        list[str] | None,
        typer.Option(
            "--enum",
            metavar="TAG=LOW,…,HIGH",
            help="The values of a tag, from lowest to highest.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> Exit:
    """Take messages and print or process each in its own transaction.

    Prints each payload and a newline, and commits. With --exec, runs a command instead, with the payload on its stdin:
    exit status 0 commits, any other status redelivers the message. AIOZKQUEUE_MESSAGE_ID and AIOZKQUEUE_ATTEMPT are in
    its environment, AIOZKQUEUE_AUTH is not. A message must match all filters; --filter and --enum may be repeated.
    SIGTERM or SIGINT: finish the current message, then exit. A second signal exits immediately, and the message is
    redelivered.

    Exit status 1: there was no message, or a command failed.

    Examples:
    [dim]$ aiozkqueue consume orders --limit 10 --json
    $ aiozkqueue consume renders --enum class=low,standard,high --filter 'class<=standard'
    $ aiozkqueue consume orders --follow --exec './ship.sh'[/dim]
    """
    if command is not None and as_json:
        message = "--exec prints nothing, so it excludes --json"
        raise typer.BadParameter(message)
    handler: Handler = partial(_print, as_json=as_json) if command is None else partial(_execute, command)
    done = failed = 0
    given_up.log.addFilter(_is_not_noted)  # this command prints the failure itself
    left_open.log.disabled = True  # an error of the output leaves its message to the end of the session on purpose
    condition = parse_filters(filters or (), enums or ())
    async with connection.open() as session:
        target = queue.of(session) if follow else await connection.existing(session, queue)
        if follow:
            await connection.note_new(session, queue)  # it waits for the first put
            await _note_pause(target, queue)  # and for the end of a pause
        consumer = target.consume(
            prefetch=min(_PREFETCH, limit or _PREFETCH),
            settle="explicit",
            until_idle=None if follow else 0,
            filters=condition,
        )
        async with consumer as deliveries:
            drain_on_signals(deliveries.stop)
            async for delivery in deliveries:
                if await _settle(delivery, handler):
                    done += 1
                else:
                    failed += 1
                if done + failed == limit:
                    break
        if not (follow or done + failed):
            await _note_reason(target, queue, filtered=condition is not None)
    if follow and not failed:
        return Exit.OK
    return Exit.OK if done and not failed else Exit.NOTHING


async def _note_pause(target: zq.Queue[bytes], queue: AskedQueue) -> bool:
    """Print that the queue is paused, if it is. Queues of other programs have no pause."""
    if queue.program is not None:
        return False
    try:
        paused = (await target.configuration()).paused
    except NotFoundError:
        return False
    if paused:
        output.note(f"queue {queue.name!r} is paused; aiozkqueue resume {queue.name} ends the pause")
    return bool(paused)


async def _note_reason(target: zq.Queue[bytes], queue: AskedQueue, *, filtered: bool) -> None:
    """Print why there was no message."""
    if await _note_pause(target, queue):
        return
    if size := await target.size():
        none = "none that can be taken now matches the filters" if filtered else "none can be taken now"
        operand = "" if queue.program is not None else f" {queue.name}"
        why = f"{none}; aiozkqueue peek{operand} shows their states"
        output.note(f"queue {queue.name!r} has {counted(size, 'message')}, but {why}")
    else:
        output.note(f"queue {queue.name!r} has no messages")


async def _settle(delivery: zq.Delivery[bytes], handler: Handler) -> bool:
    failure = await handler(delivery)
    if failure is not None:
        ended = any(claim.used_up for claim in work_of(delivery).claims)
        fate = "has used up its attempts" if ended else "will be redelivered"
        await settle_failed(delivery, CommandFailedError(failure))  # stored as the message's last error
        output.note(f"{delivery.id} {fate}: {failure}")
        return False
    try:
        await delivery.commit()
    except zq.NotCommittedError as error:
        output.note(f"{delivery.id} will be redelivered: {error}")
        return False
    return True


def _is_not_noted(record: logging.LogRecord) -> bool:
    """Whether a line of the log says something else than the note about a failed command."""
    return record.exc_info is None or not isinstance(record.exc_info[1], CommandFailedError)


async def _print(delivery: zq.Delivery[bytes], *, as_json: bool) -> None:
    line = delivery.body
    if as_json:
        line = output.json_line(output.message_record(delivery)).encode()
    # In a thread, because a reader may be slow and the session must stay alive.
    await to_thread.run_sync(_write, line + b"\n")


def _write(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


async def _execute(command: str, delivery: zq.Delivery[bytes]) -> str | None:
    process = await asyncio.create_subprocess_shell(
        command,
        stdin=asyncio.subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if name not in {AUTH, AUTH_FILE}}
        | {"AIOZKQUEUE_MESSAGE_ID": delivery.id, "AIOZKQUEUE_ATTEMPT": str(delivery.attempt)},
        # A separate process group, so that the Ctrl-C for this process does not reach the command.
        process_group=0,
    )
    try:
        # A command may ignore its input.
        with suppress(BrokenPipeError, ConnectionResetError):
            await process.communicate(delivery.body)
        status = await process.wait()
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise
    if status < 0:
        return f"the command was ended by signal {-status}"
    return None if status == 0 else f"the command exited with status {status}"
