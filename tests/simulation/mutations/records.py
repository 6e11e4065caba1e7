"""Defects in the history, and in clean-up."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from aiozkqueue.layout import End
from aiozkqueue.operations import cleaning
from aiozkqueue.queue.commit import history as histories
from aiozkqueue.testing.simulator import SimulatedClient
from aiozkqueue.zookeeper import Check, Create, Delete, below
from tests.simulation.mutations import mutation
from tests.simulation.mutations.sending import is_slot, leave_out
from tests.simulation.stories.records import clean_up_runs_while_messages_fail
from tests.simulation.workload import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from aiozkqueue.zookeeper import Operation, Result

with_records = partial(run, feature="records")


def is_record(operation: Operation) -> bool:
    return "/history/" in operation.path and isinstance(operation, Create) and bool(operation.data)


@mutation(with_records)
def history_in_a_separate_multi(patch: pytest.MonkeyPatch) -> None:
    multi = SimulatedClient.multi

    def split(
        self: SimulatedClient,
        operations: Sequence[Operation],
        *,
        generation: int | None = None,
        results: int | None = None,
    ) -> asyncio.Future[list[Result]]:
        records = [operation for operation in operations if is_record(operation)]
        if not records or not is_slot(operations[0]):
            return multi(self, operations, generation=generation, results=results)
        hour = records[0].path.rpartition("/")[0]
        rest = [Check(hour) if is_record(operation) else operation for operation in operations]
        whole = multi(
            self, rest, generation=generation, results=results
        )  # refused while the hour is missing, and repaired
        multi(self, records, generation=generation).add_done_callback(lambda done: done.cancelled() or done.exception())
        return whole

    patch.setattr(SimulatedClient, "multi", split)


@mutation(with_records)
def releases_recorded_as_finished(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(histories._OUTCOMES, "release", End.FINISHED)


@mutation(with_records)
def dead_letters_not_recorded(patch: pytest.MonkeyPatch) -> None:
    patch.delitem(histories._OUTCOMES, "dead")


@mutation(with_records)
def fresh_history_cleaned(patch: pytest.MonkeyPatch) -> None:
    look = cleaning._Cleaning.check_clock

    async def hasty(self: Any) -> None:
        await look(self)
        self._now += 8 * 24 * 3600 * 1000

    patch.setattr(cleaning._Cleaning, "check_clock", hasty)


@mutation(clean_up_runs_while_messages_fail)
def clean_up_lists_items_before_attempts(patch: pytest.MonkeyPatch) -> None:
    attempts = cleaning._Cleaning.attempts

    async def early(self: Any) -> int:
        names = [name for folder in await self._item_folders() for name in await below(self._zookeeper, folder)]
        ids = {item.id for item in map(self._state.parse_item, names) if item is not None}
        await asyncio.sleep(0.005)

        async def known(*_: object) -> set[str]:
            return ids

        self._ids = known
        self._now += 60_000  # records that were just written are old enough too
        return await attempts(self)

    patch.setattr(cleaning._Cleaning, "attempts", early)


@mutation(clean_up_runs_while_messages_fail)
def clean_up_keeps_the_lock_of_an_orphan(patch: pytest.MonkeyPatch) -> None:
    leave_out(
        patch,
        lambda operation: "/lock-" in operation.path and isinstance(operation, Delete),
        lambda operations: isinstance(operations[0], Create) and "/lock-" in operations[0].path,
    )
