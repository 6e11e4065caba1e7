"""The commands put together, and the one place where an error becomes a line and an exit status."""

from __future__ import annotations

import asyncio
import os
import sys
from importlib.metadata import version
from typing import Annotated, Final

import typer

from aiozkqueue.cli import (
    alter,
    configure,
    consume,
    dead_letters,
    doctor,
    dump,
    events,
    jobs,
    ledgers,
    moves,
    notify,
    output,
    pause,
    pins,
    put,
    queues,
    records,
    serve,
    top,
    transfer,
    why,
    worker,
    zookeeper,
)
from aiozkqueue.cli.audit import command as audit
from aiozkqueue.cli.demo import command as demo
from aiozkqueue.cli.demo import worker as demo_worker
from aiozkqueue.cli.exits import EXPLAINED, Exit, expected, status_of

app: Final = typer.Typer(name="aiozkqueue", rich_markup_mode="rich", pretty_exceptions_enable=False, epilog=EXPLAINED)
dlq: Final = typer.Typer(help="What a queue's policy gave up on: dead letters.", epilog=EXPLAINED)
bus: Final = typer.Typer(help="Typed events, and who gets them.", epilog=EXPLAINED)
notifications: Final = typer.Typer(help="Events for a date.", epilog=EXPLAINED)
keys: Final = typer.Typer(help="Who may use the queues over HTTP.", epilog=EXPLAINED)
recurring: Final = typer.Typer(help="Messages that are put again and again, by a cron expression.", epilog=EXPLAINED)


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"{version('aiozkqueue')}\n")
        raise typer.Exit


@app.callback()
def start(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Transactional queues on ZooKeeper, from the command line."""


for _command in (
    demo.demo,
    zookeeper.zookeeper,
    put.put,
    consume.consume,
    queues.peek,
    queues.stats,
    top.top,
    why.why,
    records.state,
    records.history,
    records.consumers,
    configure.command,
    pause.pause,
    pause.resume,
    queues.purge,
    alter.cancel,
    alter.update,
    moves.move,
    moves.moves,
    doctor.doctor,
    records.clean,
    records.reap,
    transfer.load,
    transfer.unload,
    audit.audit,
    serve.serve,
    worker.worker,
    dump.dump,
):
    app.command(epilog=EXPLAINED)(_command)
app.command("demo-worker", hidden=True)(demo_worker.demo_worker)
dlq.command("list", epilog=EXPLAINED)(dead_letters.list_)
dlq.command(epilog=EXPLAINED)(dead_letters.redrive)
dlq.command(epilog=EXPLAINED)(dead_letters.purge)
app.add_typer(dlq, name="dlq")
held: Final = typer.Typer(help="What Spark streams hold of a queue.", epilog=EXPLAINED)
held.command("list", epilog=EXPLAINED)(ledgers.list_)
held.command(epilog=EXPLAINED)(ledgers.release)
held.command(epilog=EXPLAINED)(ledgers.discard)
app.add_typer(held, name="ledgers")
pinned: Final = typer.Typer(help="What keeps clean-up from histories.", epilog=EXPLAINED)
pinned.command("list", epilog=EXPLAINED)(pins.list_)
pinned.command(epilog=EXPLAINED)(pins.remove)
app.add_typer(pinned, name="pins")
recurring.command("list", epilog=EXPLAINED)(jobs.list_)
for _of_job in (jobs.add, jobs.pause, jobs.resume, jobs.remove, jobs.run):
    recurring.command(epilog=EXPLAINED)(_of_job)
app.add_typer(recurring, name="jobs")
bus.command("list", epilog=EXPLAINED)(events.buses)
bus.command(epilog=EXPLAINED)(events.groups)
app.add_typer(bus, name="bus")
notifications.command("list", epilog=EXPLAINED)(events.notifications)
notifications.command(epilog=EXPLAINED)(events.ready)
for _of_date in (notify.schedule, notify.find, notify.update, notify.remove):
    notifications.command(epilog=EXPLAINED)(_of_date)
app.add_typer(notifications, name="notifications")
keys.command(epilog=EXPLAINED)(serve.create)
keys.command("list", epilog=EXPLAINED)(serve.list_)
keys.command(epilog=EXPLAINED)(serve.revoke)
app.add_typer(keys, name="keys")


def run(arguments: list[str] | None = None) -> int:
    """Run one command; returns its exit status. Errors that users can meet are one line on stderr."""
    try:
        return int(
            app(arguments or sys.argv[1:] or ["--help"], prog_name="aiozkqueue", standalone_mode=False) or Exit.OK
        )
    except typer.TyperException as error:
        output.note(error.format_message())
        return error.exit_code
    except (typer.Abort, asyncio.CancelledError):
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # Our reader has gone. Nothing more can be said to it, not even by the interpreter's last flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.NOTHING
    except Exception as error:
        cause = expected(error)
        if cause is None:
            raise
        output.note(str(cause) or type(cause).__name__)
        return status_of(cause)
