"""The figures of a soak, as a table and as JSON."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rich.table import Table

from aiozkqueue.layout import messages_in
from tests.simulation.history import Status

if TYPE_CHECKING:
    from pathlib import Path

    from tests.soak.run import Result

_LOST = "no_committed_message_is_lost"
_DOUBLED = ("each_message_ends_once", "a_consumed_message_is_not_redelivered")


def figures(result: Result, folder: Path | None) -> dict[str, object]:
    """Return all figures by name; ``folder`` has the histories if they were kept."""
    history = result.history
    units = Counter(unit.status for unit in history.units if unit.takes)
    rules = Counter(violation.partition(":")[0] for violation in result.violations)
    left = sum(map(len, history.final.items.values()))
    return {
        "seed": result.seed,
        "seconds": result.seconds,
        "messages put": sum(unit.status is Status.COMMITTED for _, unit in history.put().values()),
        "bundles": len(result.servers.bundles),
        "messages in bundles": sum(map(messages_in, result.servers.bundles)),
        "deliveries": sum(map(len, history.deliveries().values())),
        "commits with takes": units[Status.COMMITTED],
        "rolled back or refused": units[Status.NOT_COMMITTED],
        "outcome never known": result.unresolved,
        "dead letters": {queue: len(tokens) for queue, tokens in history.final.dead.items()},
        "faults": dict(sorted(Counter(fault.kind for fault in result.faults).items())),
        "elections": max(0, len(result.servers.epochs) - 1),
        "sessions expired": len(result.servers.expired),
        "transactions on the servers": len(result.servers.transactions),
        "lost": rules[_LOST],
        "doubled": sum(rules[name] for name in _DOUBLED),
        "stuck": left + sum("stuck" in text or "did nothing" in text for text in history.trouble),
        "violations": len(result.violations),
        "longest wait after a fault, s": round(result.waits.longest, 2),
        "which was": f"{result.waits.token} after {result.waits.fault}",
        "longest wait by fault, s": {kind: round(wait, 2) for kind, wait in sorted(result.waits.by_kind.items())},
        "longest wait without, s": round(result.waits.undisturbed, 2),
        "histories": None if folder is None else str(folder),
    }


def table(result: Result) -> Table:
    """Return the figures as a table for a person."""
    verdict = "[red]violations found" if result.violations else "[green]no violation"
    shown = Table(title=f"Soak of {result.seconds:g} s, seed {result.seed}: {verdict}", show_header=False)
    shown.add_column()
    shown.add_column(justify="right")
    shown.add_column()
    waits = result.waits.by_kind
    for name, value in figures(result, None).items():
        if name in ("seed", "seconds", "histories", "longest wait by fault, s"):
            continue
        if name == "faults" and isinstance(value, dict):
            for kind, count in value.items():
                longest = f"longest wait {waits[kind]:.2f} s" if kind in waits else ""
                shown.add_row(kind, f"{count:,}", longest)
        elif isinstance(value, dict):
            each = ", ".join(f"{key} {count:,}" for key, count in value.items())
            shown.add_row(name, f"{sum(value.values()):,}", each)
        elif isinstance(value, str):
            shown.add_row(name, "", value)
        else:
            shown.add_row(name, f"{value:,}")
    return shown
