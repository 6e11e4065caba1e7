"""The time for which messages waited for a delivery because of a fault."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.simulation.history import Status

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.simulation.history import History
    from tests.soak.faults import InjectedFault


@dataclass
class Waits:
    """The longest waits, in seconds."""

    by_kind: dict[str, float] = field(default_factory=dict[str, float])
    """The longest wait for each kind of fault: from the fault, or from a later put, to the delivery."""
    longest: float = 0.0
    token: str = ""
    fault: str = ""
    undisturbed: float = 0.0
    """The longest wait without a fault."""


def longest_waits(history: History, faults: Sequence[InjectedFault]) -> Waits:
    """Measure all waits; each is attributed to the first fault that was active during it."""
    waits = Waits()
    ordered = sorted(faults, key=lambda fault: fault.at)
    starts = [fault.at for fault in ordered]
    for token, start, end in _waits(history):
        in_force = [fault for fault in ordered[: bisect_right(starts, end)] if fault.ended >= start]
        if not in_force:
            waits.undisturbed = max(waits.undisturbed, end - start)
            continue
        fault = in_force[0]
        waited = end - max(start, fault.at)
        waits.by_kind[fault.kind] = max(waits.by_kind.get(fault.kind, 0.0), waited)
        if waited > waits.longest:
            waits.longest, waits.token, waits.fault = waited, token, f"{fault.kind} ({fault.victim})"
    return waits


def _waits(history: History) -> Iterator[tuple[str, float, float]]:
    """Yield each wait of a message for a delivery: from its put, or from the end of the last delivery."""
    put = history.put()
    for token, deliveries in history.deliveries().items():
        unit = put[token][1] if token in put else None
        if unit is not None and unit.status is Status.COMMITTED and unit.decided < deliveries[0].at:
            yield token, unit.decided, deliveries[0].at
        for before, after in pairwise(deliveries):
            start = before.at if before.until is None else before.until
            yield token, start, max(start, after.at)
