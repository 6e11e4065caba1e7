"""The index of groups: however a listing is interrupted, it knows each group from its oldest remaining item on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aiozkqueue.layout import StoredConfig, key_hash
from aiozkqueue.queue.candidates.chains import Chains
from aiozkqueue.queue.candidates.groups import GroupIndex

HASHES = [key_hash(str(group)) for group in range(3)]


def name_of(group: int, number: int) -> str:
    return f"item-g{HASHES[group]}-iID{number}-{number:010d}"


def lock_of(group: int) -> str:
    return f"g{HASHES[group]}"


def index() -> GroupIndex:
    """Return an index of a watched queue."""
    found = GroupIndex(StoredConfig(ordered=False))
    found.watch(armed=True)
    return found


def assert_known(known: GroupIndex, remaining: dict[int, int]) -> None:
    """Check that all remaining items of each group are known, oldest first; ``remaining`` has their groups."""
    for group in range(3):
        members = [f"items/{name_of(group, number)}" for number, of in remaining.items() if of == group]
        assert known.candidates(lock_of(group), 99) == members


#: The groups of items that are put before the listing, and then the puts and removals between two parts of it.
groups = st.integers(0, 2)
events = st.lists(st.one_of(st.tuples(st.just("put"), groups), st.tuples(st.just("remove"), st.integers(0, 99))))


@given(st.lists(groups, max_size=12), st.integers(1, 4), st.lists(events, max_size=14), events)
def test_puts_and_removals_between_two_parts_of_a_listing_leave_no_gap(
    before: list[int], size: int, between: list[list[tuple[str, int]]], later: list[tuple[str, int]]
) -> None:
    known = index()
    remaining = dict(enumerate(before))
    made = len(before)
    known.begin_listing("items")
    listed = [name_of(group, number) for number, group in remaining.items()]
    offered: list[str] = []

    def happen(some: list[tuple[str, int]]) -> None:
        nonlocal made
        for kind, chosen in some:
            if kind == "put":
                remaining[made] = chosen
                known.add_reported(f"items/{name_of(chosen, made)}")
                made += 1
            elif remaining:
                number = list(remaining)[chosen % len(remaining)]
                known.deleted(f"items/{name_of(remaining.pop(number), number)}")

    for start in range(0, len(listed), size):
        offered += known.collect(listed[start : start + size])
        happen(between.pop() if between else [])
    for some in between:
        happen(some)
    offered += known.end_listing("items", set(), whole=True)
    assert {lock_of(group) for group in remaining.values()} <= set(map(known.lock_id, offered)), (
        "no consumer tries a group meanwhile"
    )
    assert_known(known, remaining)
    happen(later)
    assert_known(known, remaining)


def test_a_part_of_the_items_is_known_until_the_listing_is_complete() -> None:
    known = index()
    known.begin_listing("items")
    known.collect([name_of(0, 1)])
    known.end_listing("items", set(), whole=True)
    known.begin_listing("items")
    known.collect([name_of(0, 1), name_of(0, 2)])
    assert known.candidates(lock_of(0), 9) == [f"items/{name_of(0, 1)}"]
    known.end_listing("items", set(), whole=True)
    assert known.candidates(lock_of(0), 9) == [f"items/{name_of(0, number)}" for number in (1, 2)]


def test_items_of_an_older_generation_come_first() -> None:
    known = index()
    for lane in ("lanes/s0g1", "items"):
        known.begin_listing(lane)
        known.collect([name_of(0, 1)])
        known.end_listing(lane, set(), whole=True)
    assert known.candidates(lock_of(0), 9) == [f"items/{name_of(0, 1)}", f"lanes/s0g1/{name_of(0, 1)}"]


@given(st.lists(st.integers(0, 9), max_size=30))
def test_items_removed_in_any_order_are_not_among_the_remaining(order: list[int]) -> None:
    lane = Chains()
    for number in range(10):
        assert lane.append("g", str(number)) is (number == 0)
    for number in order:
        lane.remove("g", str(number))
    remaining = [str(number) for number in range(10) if number not in order]
    assert list(lane.names("g")) == remaining
    assert bool(lane) is bool(remaining)
