"""Results as tables for the terminal, and as JSON files."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.table import Table

from .bars import BARS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rich.console import Console

    from .rounds import Results

SUBJECTS = {
    "put": "Put",
    "take": "Take",
    "take_many": "Take a hundred a transaction",
    "listener": "Listen, or work",
    "iterate": "Iterate",
    "features": "A plain queue beside all features",
    "sessions": "Consumer sessions on one queue",
    "depth": "Depth",
    "payload": "Payload",
    "million": "A deep queue in shards",
    "http": "Over HTTP, beside the direct API",
    "spark": "Spark beside the direct API",
    "spark targets": "Spark with bundles, beside the direct API and Spark's floor",
    "latency": "Latency on an idle queue",
    "killbill": "killbill-queue's figure",
    "ensemble": "Three nodes",
}


def show(console: Console, results: Results, machine: Mapping[str, str]) -> None:
    """Print all results."""
    for subject, title in SUBJECTS.items():
        names = [name for name, own in results.subjects.items() if own == subject and name in results.samples]
        if names:
            console.print(_table(results, title, names))
    for name, why in results.absent.items():
        console.print(f"[bold yellow]not measured[/] {name}: {why}")
    if (judged := _judged(results)).row_count:
        console.print(judged)
    console.print("; ".join(f"{name}: {value}" for name, value in machine.items()), style="dim")


def save(path: Path, results: Results, machine: Mapping[str, str], options: Mapping[str, object]) -> None:
    """Write every sample, the medians and the bars as JSON."""
    cases = {
        name: {
            "subject": results.subjects[name],
            "messages_per_second": results.median(name),
            "client_us_per_message": results.median(name, "client_us"),
            "server_us_per_message": results.median(name, "server_us"),
            "requests_per_message": results.median(name, "requests"),
            "samples": {round_: asdict(sample) for round_, sample in samples.items()},
        }
        for name, samples in results.samples.items()
    }
    bars = [
        {"bar": str(bar), "limit": bar.limit, "reached": value, "passed": bar.passed(value)}
        for bar in BARS
        if (value := bar.value(results)) is not None
    ]
    document = {"machine": machine, "options": options, "cases": cases, "bars": bars, "absent": results.absent}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def _table(results: Results, title: str, names: list[str]) -> Table:
    """Build the table of one subject: medians over the rounds, ranges, and the ratio of each case to the first."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("case")
    for heading in ("messages/s", "from – to", "× first", "client µs", "server µs", "requests", "more"):
        table.add_column(heading, justify="left" if heading == "more" else "right")
    for name in names:
        samples = results.samples[name].values()
        rates = [sample.rate for sample in samples]
        more = {key: results.median(name, key) or 0.0 for key in next(iter(samples)).figures}
        ratio = results.ratio(name, names[0])
        table.add_row(
            name,
            f"{results.median(name):,.0f}",
            f"{min(rates):,.0f} – {max(rates):,.0f}",
            "" if ratio is None else f"{ratio:.2f}",
            f"{results.median(name, 'client_us'):,.1f}",
            f"{results.median(name, 'server_us'):,.1f}",
            f"{results.median(name, 'requests'):,.3f}",
            ", ".join(f"{key} {value:.3g}" for key, value in more.items()),
        )
    return table


def _judged(results: Results) -> Table:
    table = Table(title="What must be reached, within a run", title_justify="left", title_style="bold")
    table.add_column("")
    table.add_column("reached", justify="right")
    table.add_column("bar")
    for bar in BARS:
        value = bar.value(results)
        if value is not None:
            table.add_row("[green]pass[/]" if bar.passed(value) else "[bold red]miss[/]", f"{value:.3g}", str(bar))
    return table
