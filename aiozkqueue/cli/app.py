"""The command line with all its commands. Errors become one line and an exit status here."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Annotated, Final, cast

import typer

from aiozkqueue.cli import output
from aiozkqueue.cli.commands import COMMANDS
from aiozkqueue.cli.exits import EXPLAINED, Exit, expected, status_of
from aiozkqueue.cli.lazy import LazyGroup

#: The words with which the library that checks values begins its messages.
_VALIDATOR: Final = "Value error, "
_app: Final = typer.Typer(
    name="aiozkqueue", cls=LazyGroup, rich_markup_mode="rich", pretty_exceptions_enable=False, epilog=EXPLAINED
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415 - other starts do not need it

        sys.stdout.write(f"{version('aiozkqueue')}\n")
        raise typer.Exit


@_app.callback()
def start(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Transactional queues on ZooKeeper, from the command line."""


#: The command line as a whole.
command: Final = cast("LazyGroup", typer.main.get_command(_app))
command.extend(COMMANDS)


def _replace_closed_streams() -> None:
    """Replace standard streams that the caller has closed (``>&-``) by the null device."""
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123 - for as long as the process runs


def run(arguments: list[str] | None = None) -> int:
    """Run one command; returns its exit status. Errors that users can meet are one line on stderr."""
    _replace_closed_streams()
    output.escape_unencodable()
    try:
        return int(
            command(arguments or sys.argv[1:] or ["--help"], prog_name="aiozkqueue", standalone_mode=False) or Exit.OK
        )
    except typer.TyperException as error:
        output.note(_message_of(error))
        return error.exit_code
    except (typer.Abort, asyncio.CancelledError):
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has ended. Nothing can be written, not even by the interpreter's last flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.NOTHING
    except Exception as error:
        cause = expected(error)
        if cause is None:
            raise
        output.note("; ".join((str(cause) or type(cause).__name__, *getattr(cause, "__notes__", ()))))
        return status_of(cause)


def _message_of(error: typer.TyperException) -> str:
    """Return the error of a command line, with a reference to the help."""
    if isinstance(error, typer.BadParameter) and error.param is None and error.param_hint is None:
        return error.message  # a check of our own, which names the options itself
    context = getattr(error, "ctx", None)
    if context is None or isinstance(error, typer.BadParameter):  # its message has the remedy
        return error.format_message().replace(_VALIDATOR, "")
    misplaced = context.parent is None and hasattr(error, "option_name")
    where = "; options go after the command" if misplaced else ""
    return f"{error.format_message().rstrip('.')}{where}; see: {context.command_path} --help"
