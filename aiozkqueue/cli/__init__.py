"""The `aiozkqueue` command: one module for each group of commands, built on the package's public API only.

`commands` lists them, and `lazy` imports the one that is run. `connection` has the options of every command, `output`
prints the results, `bars` shows the progress, `exits` defines the exit statuses, and `spark` opens the session of
commands that use Spark. typer and rich come with the extra ``cli``, and are imported only when the command runs, rich
only to draw.
"""

from __future__ import annotations

import sys

from aiozkqueue.errors import MissingExtraError
from aiozkqueue.extras import needs


def main() -> None:
    """Run the command line, and exit with one of `aiozkqueue.cli.exits`."""
    try:
        with needs("cli,embedded"):
            from aiozkqueue.cli.app import run  # noqa: PLC0415 - its imports need not be installed
    except MissingExtraError as error:
        sys.stderr.write(f"aiozkqueue: {error}\n")
        sys.exit(2)
    sys.exit(run())
