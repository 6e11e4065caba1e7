"""The arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from aiozkqueue.cli.durations import TIME, duration_from

QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="The name of the queue.")]
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
