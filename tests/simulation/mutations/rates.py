"""Defects in rates."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from aiozkqueue.rates.pace import Pace
from aiozkqueue.session.listener import Listener
from aiozkqueue.zookeeper import SetData
from tests.simulation.mutations import mutation
from tests.simulation.mutations.sending import replace_where
from tests.simulation.workload import run

if TYPE_CHECKING:
    import pytest

at_a_rate = partial(run, feature="rates")


@mutation(at_a_rate)
def rate_leased_at_any_version(patch: pytest.MonkeyPatch) -> None:
    replace_where(
        patch,
        lambda operation: isinstance(operation, SetData) and "/.rates/" in operation.path,
        lambda operation: SetData(operation.path, operation.data),
    )


@mutation(at_a_rate)
def passed_slots_used(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Pace, "_forget_passed", lambda _: None)


@mutation(at_a_rate)
def own_rate_ignored(patch: pytest.MonkeyPatch) -> None:
    make = Pace.__init__

    def without(self: Pace, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        self._step = 0.0

    patch.setattr(Pace, "__init__", without)


@mutation(at_a_rate)
def calls_wait_for_their_attempt_without_a_limit(patch: pytest.MonkeyPatch) -> None:
    make = Listener.__init__

    def without(self: Listener[bytes], *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        self._reply_limit = None

    patch.setattr(Listener, "__init__", without)
