"""Streams and their ledger."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiozkqueue.queue.ledger import Ledger
from aiozkqueue.zookeeper import Check, Create
from tests.simulation.mutations import mutation
from tests.simulation.workload import run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    import pytest

    from aiozkqueue.zookeeper import Operation

of_streams = partial(run, feature="streams")


@mutation(of_streams)
def a_driver_that_was_followed_goes_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "_check", lambda self: Check(self._path))


@mutation(of_streams)
def a_batch_holds_none_of_its_messages(patch: pytest.MonkeyPatch) -> None:
    change = Ledger._change

    async def without_locks(self: Ledger, operations: Sequence[Operation], done: Callable[[], Awaitable[bool]]) -> None:
        kept = [one for one in operations if not (isinstance(one, Create) and "/locks/" in one.path)]
        await change(self, kept, done)

    patch.setattr(Ledger, "_change", without_locks)


@mutation(of_streams)
def a_batch_is_acknowledged_before_it_is_done(patch: pytest.MonkeyPatch) -> None:
    acknowledge = Ledger.acknowledge

    async def too_much(self: Ledger, number: int) -> int:
        return await acknowledge(self, number + 1)

    patch.setattr(Ledger, "acknowledge", too_much)
