"""Compaction by names: which items are in one set, and which of them was put last."""

from __future__ import annotations

import pytest

from aiozkqueue.layout import Header, ItemName, encode
from aiozkqueue.layout.compaction import (
    compaction_key,
    compaction_key_at,
    newest_own,
    newest_restored,
    put_at,
    restored_in,
)

KEY = "k" + "a" * 32


def name(fields: str, message: str, sequence: int) -> str:
    return f"item-{fields}-i{message}-{sequence:010d}"


@pytest.mark.parametrize(
    "fields", [KEY, f"{KEY}-u1", f"e99-{KEY}", f"{KEY}-o1700000000000", f"t5-p130-{KEY}-o7", f"{KEY}-c1"]
)
def test_items_of_a_key_are_in_one_set_also_if_they_were_restored_or_are_of_calls(fields: str) -> None:
    item = ItemName.parse(name(fields, "x", 3))
    assert item is not None
    assert compaction_key(item) == compaction_key_at(name(fields, "y", 4)) == f"{KEY[1:]}-"


@pytest.mark.parametrize("fields", [f"{KEY}-nabc", f"{KEY}-f{'b' * 16}", f"{KEY}-sabc-o5"])
def test_items_of_other_nodes_tags_and_search_keys_are_in_other_sets(fields: str) -> None:
    assert compaction_key_at(name(fields, "x", 1)) not in (None, f"{KEY[1:]}-")


@pytest.mark.parametrize("fields", ["o5", f"g{'c' * 32}-{KEY}-o5"])
def test_items_without_a_key_or_in_a_group_are_in_no_set(fields: str) -> None:
    assert compaction_key_at(name(fields, "x", 1)) is None


def test_the_restored_item_that_was_put_last_is_the_newest_of_them() -> None:
    names = [
        name(f"{KEY}-o30", "a", 1),
        name(KEY, "b", 2),
        name(f"{KEY}-o50", "c", 3),
        name(f"{KEY}-o50", "d", 4),
        name(f"{KEY}-o40", "e", 5),
        name(f"{KEY}-ox", "f", 6),
    ]
    restored = restored_in(names)
    assert list(restored.values()) == [30, 50, 50, 40]
    assert newest_restored(restored) == names[3]
    assert newest_own(names, restored) == names[5]
    assert newest_own(names[2:5], restored) is None


def test_the_time_of_a_put_is_the_stored_one_or_that_of_the_znode() -> None:
    assert put_at(encode(b"x", Header(enqueued_at=7)), 9) == 7
    assert put_at(b"x", 9) == 9
    assert put_at(encode(b"x", Header(enqueued_at=7))[:6], 9) == 9
