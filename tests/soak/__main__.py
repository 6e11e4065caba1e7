"""Run a soak: ``python -m tests.soak``, or ``make soak MINUTES=10``."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tests.soak import report
from tests.soak.run import soak

#: The number of violations shown; the histories have all of them.
SHOWN = 30


def main() -> int:
    """Run, report, and keep the histories if there is a violation."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # through the code that stops the servers
    console = Console(stderr=options.json)
    seed = int(time.time()) if options.seed is None else options.seed
    seconds = options.minutes * 60
    folder = options.histories or Path(tempfile.mkdtemp(prefix="aiozkqueue-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise SystemExit(f"{folder} has files in it: histories need an empty folder")
    columns = (TextColumn("{task.description:22}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=seconds)
        show = lambda stage, seconds: progress.update(task, description=stage, completed=seconds)  # noqa: E731 - one expression
        try:
            result = asyncio.run(soak(seed, seconds, folder, show))
        except BaseException:
            console.print(f"Seed {seed}. The histories are in {folder}")
            raise
    keep = bool(result.violations) or options.histories is not None
    if options.json:
        print(json.dumps(report.figures(result, folder if keep else None), indent=2))  # noqa: T201 - the result
    else:
        console.print(report.table(result))
    for violation in result.violations[:SHOWN]:
        console.print(violation, style="red", markup=False)
    if keep:
        console.print(f"Seed {seed}. The histories are in {folder}", markup=False)
    else:
        shutil.rmtree(folder)
    return 1 if result.violations else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="minutes with faults; repair and checks take additional time"
    )
    parser.add_argument("--seed", type=int, help="seed of the schedule of faults; by default, the current time")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON on stdout")
    parser.add_argument("--histories", type=Path, help="an empty folder for the histories, which are then always kept")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
