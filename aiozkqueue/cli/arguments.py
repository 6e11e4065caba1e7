"""The arguments and options that several commands take alike."""

from __future__ import annotations

from typing import Annotated

import typer

QueueName = Annotated[str, typer.Argument(metavar="QUEUE")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
