"""Defects in filters."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiozkqueue.layout import name_digest
from aiozkqueue.queue.candidates import filters
from tests.simulation.mutations import mutation
from tests.simulation.workload import run

if TYPE_CHECKING:
    import pytest

of_filters = partial(run, feature="filters")


@mutation(of_filters)
def one_filter_result_used_for_all_tags(patch: pytest.MonkeyPatch) -> None:
    def any_verdict(self: filters.FilterSelector, place: str) -> bool:
        return name_digest(place.rpartition("/")[2]) is not None and True in self._verdicts.values()

    async def listing(self: filters.FilterSelector, names: list[str], generation: int) -> list[str]:
        await self.select(names, generation)
        return [name for name in names if any_verdict(self, name)]

    patch.setattr(filters.FilterSelector, "of_listing", listing)


@mutation(of_filters)
def items_from_watches_not_filtered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(filters.FilterSelector, "matches_reported", lambda _self, _place: True)
