"""Defects in notifications."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from aiozkqueue.queue.commit.unclaimed import ItemSnapshot
from aiozkqueue.schedule import notifications
from tests.simulation.mutations import mutation
from tests.simulation.workload import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

of_notifications = partial(run, feature="notifications")


@mutation(of_notifications)
def notifications_in_flight_changed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ItemSnapshot, "held", lambda *_: False)


@mutation(of_notifications)
def refused_removals_reported_as_made(patch: pytest.MonkeyPatch) -> None:
    async def report_all_as_made(_: Any, waiting: Sequence[ItemSnapshot], __: Any) -> set[str]:
        return {snapshot.place for snapshot in waiting}

    patch.setattr(notifications, "settled", report_all_as_made)
