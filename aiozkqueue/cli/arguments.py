"""The arguments and options that several commands share."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from aiozkqueue.cli.times import TIME, duration_from

_LOGS: Final = "Logs"

QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="The name of the queue.")]
QueueNames = Annotated[list[str], typer.Argument(metavar="QUEUE", help="The names of the queues.")]
SomeQueues = Annotated[list[str] | None, typer.Argument(metavar="QUEUE", help="Names (default: all).")]
LocalMoment = Annotated[datetime | None, typer.Option(help="Local time unless it names a zone.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
LookBudget = Annotated[
    float,
    typer.Option(
        "--budget",
        parser=duration_from(0.1, to=86_400),
        metavar=TIME,
        help="The time budget. After it, the command shows what it has read so far.",
    ),
]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    typer.Option("--log-level", help="The lowest level that is logged to stderr.", rich_help_panel=_LOGS),
]
LogFormat = Annotated[
    Literal["text", "json"],
    typer.Option("--log-format", help="Lines for people, or a JSON object for each record.", rich_help_panel=_LOGS),
]
LogConfig = Annotated[
    Path | None,
    typer.Option(
        "--log-config",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="Configure Python's logging by a file instead: a dictionary in JSON or TOML (.json, .toml), or INI.",
        rich_help_panel=_LOGS,
    ),
]
