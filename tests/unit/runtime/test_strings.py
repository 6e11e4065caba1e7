"""Containers for very many strings behave like a list and a set."""

from __future__ import annotations

import asyncio
import gc
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiozkqueue.runtime.strings import Names, Strings, clear_gradually

MANY = 20_000
pages = st.lists(st.lists(st.text(st.characters(exclude_characters="/"), min_size=1), max_size=900), max_size=4)


@given(pages)
def test_names_are_kept_in_their_order(added: list[list[str]]) -> None:
    kept, names = Names(), list[str]()
    for page in added:
        kept.extend(page)
        names += page
        assert len(kept) == len(names)
    assert list(kept) == names == kept
    assert [kept[index] for index in range(-len(names), len(names))] == names + names
    assert kept[1:-1:3] == names[1:-1:3]
    assert kept != [*names, "another"]


def test_an_index_after_the_last_name_is_an_error() -> None:
    with pytest.raises(IndexError):
        Names(["a"])[1]


@given(st.lists(st.text()), st.lists(st.text()))
def test_strings_are_a_set(added: list[str], removed: list[str]) -> None:
    kept = Strings(added[:2])
    kept.update(added[2:])
    assert kept == set(added)
    kept -= set(removed)
    assert set(kept) == set(added) - set(removed)
    kept.clear()
    assert not kept


@pytest.mark.parametrize(
    "kind",
    [
        Names,
        pytest.param(
            Strings,
            marks=pytest.mark.skipif(
                sys.version_info >= (3, 14), reason="Python 3.14 searches dictionaries of strings for garbage"
            ),
        ),
    ],
)
def test_a_search_for_garbage_does_not_visit_the_strings(kind: type[Names | Strings]) -> None:
    kept = kind(f"item-{number}" for number in range(MANY))
    referred = gc.get_referents(kept)
    assert sum(len(gc.get_referents(obj)) for obj in referred if gc.is_tracked(obj)) < MANY // 20
    assert len(kept) == MANY


def test_strings_are_released_while_other_tasks_run() -> None:
    async def main() -> int:
        turns = 0
        releasing = asyncio.ensure_future(clear_gradually(*Strings(map(str, range(MANY))).parts))
        while not releasing.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    assert asyncio.run(main()) > 2
