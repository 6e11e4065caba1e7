"""The heap of a service after its start."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.worker import settled_heap

if TYPE_CHECKING:
    from collections.abc import Iterator


class Cycle:
    """Garbage in a cycle, which only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_the_collector_skips_older_objects_and_searches_new_ones() -> None:
    cycle = Cycle()
    with settled_heap():
        assert gc.get_freeze_count() > 0
        reference = weakref.ref(cycle)
        del cycle
        came = weakref.ref(Cycle())
        gc.collect()
        assert came() is None
        assert reference() is not None
    gc.collect()
    assert reference() is None


def test_young_objects_are_collected_less_often_until_the_block_ends() -> None:
    gc.set_threshold(700, 10, 10)
    with settled_heap():
        assert gc.get_threshold() == (10_000, 10, 10)
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("chosen", [0, 50_000])
def test_a_rarer_or_disabled_collection_chosen_earlier_is_kept(chosen: int) -> None:
    gc.set_threshold(chosen, 10, 10)
    with settled_heap():
        assert gc.get_threshold()[0] == chosen
