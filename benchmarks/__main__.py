"""Run the benchmarks: ``python -m benchmarks``, or ``make bench``."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from aiozkqueue.testing import EmbeddedEnsemble, EmbeddedZooKeeper, ServerOptions

from . import (
    alike,
    bars,
    features,
    http_clients,
    killbill,
    latency,
    machine,
    on_spark,
    ours,
    over_http,
    peers_aiozk,
    peers_curator,
    peers_kazoo,
    peers_redis,
    raw,
    report,
    scaling,
    spark_targets,
)
from .measure import Server
from .rounds import Results, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .measure import Case, Sample

#: MiB of heap for a server: a million items take about 455 MB.
HEAP = 2048
ENSEMBLE_HEAP = 512
#: A measured server compiles its code as in production, and has its full heap from the start. Otherwise the cases that
#: run while the heap grows would be slower.
JVM = ("-XX:TieredStopAtLevel=4", "-XX:+AlwaysPreTouch")
#: The width of the tables in columns if there is no terminal.
WIDTH = 160

_RESULTS = Path(__file__).parent / "results"
_THREE = ("raw: multis of 100 creates", "raw: lock, read, commit in 200s", bars.PUT, bars.TAKE)


def main() -> None:
    """Read the options, measure, and report."""
    options = _options()
    # On a signal, exit through the code that stops the servers and the peers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    alike.use_loop(options.loop)
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    results = Results()
    rounds = options.rounds or (1 if options.quick else 5)
    scale = 0.1 if options.quick else 1.0
    with ExitStack() as stack:
        curator = stack.enter_context(peers_curator.Curator())
        redis = stack.enter_context(peers_redis.LocalRedis())
        peers = [*peers_curator.cases(curator), *peers_kazoo.CASES, *peers_aiozk.CASES, *peers_redis.cases(redis)]
        cases = _chosen(
            [
                *raw.CASES,
                *ours.CASES,
                *features.CASES,
                *peers,
                *scaling.CASES,
                *over_http.CASES,
                *http_clients.CASES,
                *on_spark.CASES,
                *spark_targets.CASES,
                *latency.CASES,
                *killbill.CASES,
            ],
            options.only,
        )
        by_name = {case.name: case for case in (*raw.CASES, *ours.CASES)}
        three = [replace(by_name[name], name=f"three nodes: {name}", subject="ensemble") for name in _THREE]
        three = _chosen(three, options.only)
        if not cases and not three:
            names = "\n  ".join(sorted(report.SUBJECTS))
            raise SystemExit(f"nothing is called {' or '.join(options.only)}; subjects are:\n  {names}")
        progress = stack.enter_context(_progress(console))
        server = stack.enter_context(EmbeddedZooKeeper(_with_heap(HEAP)))
        about = machine.describe(Server.of(server))
        _measure(cases, Server.of(server), results, progress, rounds=rounds, scale=scale)
        if three:
            server.stop()
            ensemble = stack.enter_context(EmbeddedEnsemble(3, _with_heap(ENSEMBLE_HEAP)))
            _measure(three, Server.of(ensemble), results, progress, rounds=rounds, scale=scale)
    report.show(console, results, about)
    if options.quick:
        console.print("[yellow]One short round: it shows that everything runs; leave out --quick for figures.[/]")
    name = options.name or time.strftime("%Y-%m-%d-%H%M%S")
    options.results.mkdir(parents=True, exist_ok=True)
    about_run = {"rounds": rounds, "scale": scale, "only": options.only}
    report.save(options.results / f"{name}.json", results, about, about_run)
    from .chart import draw  # noqa: PLC0415 - the import takes a second, and its heap would slow the clients down

    drawn = draw(options.results / f"{name}.png", results, about)
    console.print(f"kept in {options.results / name}.json" + (" and .png" if drawn else ""))


def _with_heap(size: int) -> ServerOptions:
    return ServerOptions(heap=size, jvm_options=(*JVM, f"-Xms{size}m"))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages, one round: under two minutes")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="a subject, or a part of a case's name; repeatable"
    )
    parser.add_argument("--rounds", type=int, help="how often each case is run (5, with --quick 1)")
    parser.add_argument(
        "--loop",
        choices=alike.LOOPS,
        default=alike.default_loop(),
        help="for all asyncio subjects (%(default)s)",
    )
    parser.add_argument("--name", help="of the files with the results (default: now)")
    parser.add_argument("--results", type=Path, default=_RESULTS, help="folder to keep them in")
    return parser.parse_args()


def _chosen(cases: Sequence[Case], only: Sequence[str]) -> list[Case]:
    def named(case: Case, part: str) -> bool:
        return part == case.subject if part in report.SUBJECTS else part in case.name

    return [case for case in cases if not only or any(named(case, part) for part in only)]


def _progress(console: Console) -> Progress:
    # Redraw between cases only: a drawing thread would distort the measurement.
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    return Progress(*columns, console=console, auto_refresh=False, transient=True)


def _measure(
    cases: Sequence[Case], server: Server, results: Results, progress: Progress, *, rounds: int, scale: float
) -> None:
    task = progress.add_task("", total=sum(min(rounds, case.rounds or rounds) for case in cases))

    def show_progress(case: Case, sample: Sample | None) -> None:
        if sample is None:
            progress.update(task, description=case.name)
        else:
            progress.advance(task)
            if not progress.console.is_terminal:
                progress.console.print(f"{case.name}: {sample.rate:,.0f} messages/s")
        progress.refresh()

    run(cases, server, results, rounds=rounds, scale=scale, show_progress=show_progress)


if __name__ == "__main__":
    main()
