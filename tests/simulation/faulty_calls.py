"""Calls of the matrix on a queue with bundles, as histories for the mutations that only such calls show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.bundles_subjects import BundledQueue
from tests.simulation.history import History
from tests.simulation.matrix import FAULTS, CallFault, call, verdict

if TYPE_CHECKING:
    from collections.abc import Callable


def faulty_call(name: str) -> Callable[[str], History]:
    """Return the history of one call for a seed.

    The number at the end of the seed chooses the fault; 1 means no fault.
    """

    def history(seed: str) -> History:
        full = f"{BundledQueue.__name__}.{name}"
        undisturbed, never = (
            call(BundledQueue, name, CallFault()),
            call(BundledQueue, name, CallFault(), skip=True),
        )
        injections = [CallFault(request, fault) for request in range(1, undisturbed.requests + 1) for fault in FAULTS]
        number = (int(seed.rpartition(" ")[2]) - 1) % (len(injections) + 1)
        made = undisturbed if not number else call(BundledQueue, name, injections[number - 1])
        trouble = [] if undisturbed.error is None else [repr(undisturbed.error)]
        return History(trouble=[*trouble, *verdict(full, made, undisturbed, never)])

    return history
