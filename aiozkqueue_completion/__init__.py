"""The program `aiozkqueue`: it completes words for a shell within 0.3 s, and otherwise runs the command line.

It imports `aiozkqueue` only to run a command, because that import alone takes longer than users wait for a completion.
`shells` speaks with the shell, `words` finds the words, and `servers` reads names from ZooKeeper. `commands.json` has
the commands and options; `python -m tests.cli.completion_table` writes it.
"""

from __future__ import annotations

import os
import sys

from aiozkqueue_completion.shells import complete

_INTERRUPTED = 130  # `aiozkqueue.cli.exits.Exit.INTERRUPTED`


def main() -> None:
    """Answer the shell that asks, or run the command line."""
    if complete(os.environ):
        sys.stdout.flush()
        os._exit(0)  # a name look-up that takes too long does not end with its thread
    if os.getpid() == 1:
        end_by_sigterm()
    try:
        from aiozkqueue.cli import main as run  # noqa: PLC0415 - see above

        run()
    except KeyboardInterrupt:  # while it is imported; a command handles it
        sys.exit(_INTERRUPTED)


def end_by_sigterm() -> None:
    """Let SIGTERM end this process until a command handles it, as it ends every process but the first of a container.

    Without a handler, the first process ignores the signal. A container that is stopped while the command is imported
    would then run until it is killed.
    """
    import signal  # noqa: PLC0415 - not for completions

    signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
