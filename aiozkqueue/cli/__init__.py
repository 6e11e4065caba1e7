"""The `aiozkqueue` command: one module for each group of commands, on the package's public API alone.

`commands` lists them, and `lazy` imports the one that is run. `connection` has the options every command takes,
`output` what is printed, `exits` what scripts are told, `spark` the session that those commands need which work through
Spark.
typer and rich come with the extra ``cli``, and are imported only when the command runs, rich only to draw.
"""

from __future__ import annotations

import sys

from aiozkqueue.errors import MissingExtraError
from aiozkqueue.extras import needs


def main() -> None:
    """Run the command line, and exit with one of `aiozkqueue.cli.exits`."""
    try:
        with needs("cli,embedded"):
            from aiozkqueue.cli.app import run  # noqa: PLC0415 - what it imports need not be there
    except MissingExtraError as error:
        sys.stderr.write(f"aiozkqueue: {error}\n")
        sys.exit(2)
    sys.exit(run())
