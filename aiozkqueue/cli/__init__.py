"""The `aiozkqueue` command: one module for each group of commands, on the package's public API alone.

`connection` has the options every command takes, `output` what is printed, `exits` what scripts are told, `spark` the
session that those commands need which work through Spark.
typer and rich come with the extra ``cli``, and are imported only when the command runs.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec


def main() -> None:
    """Run the command line, and exit with one of `aiozkqueue.cli.exits`."""
    missing = [name for name in ("typer", "rich") if find_spec(name) is None]
    if missing:
        sys.stderr.write(
            f"aiozkqueue: the command line needs {' and '.join(missing)}: pip install 'aiozkqueue[cli,embedded]'\n"
        )
        sys.exit(2)
    from aiozkqueue.cli.app import run  # noqa: PLC0415 - only now is it known that what it imports is there

    sys.exit(run())
