"""The item that a consumer tries next."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiozkqueue.dialects import curator
from aiozkqueue.foreign.queue_state import ForeignBacklog
from aiozkqueue.queue.candidates.backlog import PASSED_OVER, Backlog
from aiozkqueue.queue.candidates.partition import Partition
from aiozkqueue.runtime.strings import Strings

NOBODY: set[str] = set()


def free(_: str) -> bool:
    return False


def name(number: int) -> str:
    return f"item-iID{number}-{number:010d}"


def place(number: int) -> str:
    return f"items/{name(number)}"


def fill(backlog: Backlog, names: list[str], locked: set[str], now: float) -> None:
    """Store the listing of a lane that arrives at once."""
    shares = backlog.share_collector("items")
    shares.take(backlog.candidates_among(names))
    backlog.fill("items", shares, Strings(locked), now)


def listed(*numbers: int, locked: set[str] = NOBODY) -> Backlog:
    backlog = Backlog(Random(1))
    backlog.begin_listing("items")
    fill(backlog, [name(number) for number in numbers], locked, 0)
    return backlog


def test_the_oldest_of_a_listing_comes_first() -> None:
    backlog = listed(3, 1, 2)
    assert backlog.pop(2, free, 0) == [place(1), place(2)]
    assert backlog.pop(5, free, 0) == [place(3)]
    assert backlog.pop(5, free, 0) == []


def test_locked_and_excluded_items_are_left_out() -> None:
    backlog = listed(1, 2, 3, locked={"ID2"})
    assert backlog.pop(5, lambda item_id: item_id == "ID1", 0) == [place(3)]


def test_many_locked_items_are_passed_over_in_several_steps() -> None:
    numbers = range(2 * PASSED_OVER + 2)
    backlog = listed(*numbers, locked={f"ID{number}" for number in numbers[:-2]})
    backlog.add_reported("items", {name(numbers[-1] + 1): f"ID{numbers[-1] + 1}"}, 0)
    assert [backlog.pop(1, free, 0) for _ in range(2)] == [[], []]
    assert backlog.unfinished
    assert backlog.pop(5, free, 0) == [place(number) for number in (*numbers[-2:], numbers[-1] + 1)]
    assert not backlog.unfinished


def test_an_item_is_free_again_when_its_lock_is_gone() -> None:
    backlog = listed(1, 2, locked={"ID1"})
    backlog.put_back([place(1)])
    assert backlog.pop(5, free, 0) == [place(1), place(2)]


def test_an_item_reported_twice_is_offered_once() -> None:
    backlog = listed(1, 2, locked={"ID1"})
    backlog.add_reported("items", {name(1): "ID1"}, 0)  # the lock was removed
    backlog.add_reported("items", {name(3): "ID3"}, 0)
    backlog.add_reported("items", {name(3): "ID3"}, 0)
    assert backlog.pop(5, free, 0) == [place(1), place(2), place(3)]


def test_returned_items_go_to_the_front_in_their_order() -> None:
    backlog = listed(1, 2, 3, 4)
    taken = backlog.pop(2, free, 0)
    backlog.put_back(taken)
    assert backlog.pop(4, free, 0) == [place(1), place(2), place(3), place(4)]


def test_items_from_a_watch_come_after_listed_items() -> None:
    backlog = listed(1, 2)
    assert backlog.add_reported("items", {name(3): "ID3"}, 0)
    assert backlog.pop(5, free, 0) == [place(1), place(2), place(3)]


def test_an_item_reported_before_a_listing_is_offered_once() -> None:
    backlog = listed()
    backlog.add_reported("items", {name(1): "ID1"}, 0)
    backlog.begin_listing("items")
    backlog.add_reported("items", {name(2): "ID2"}, 0)  # while the listing is in progress
    fill(backlog, [name(1)], set(), 0)
    assert backlog.pop(5, free, 0) == [place(1), place(2)]


@pytest.mark.parametrize("stranger", ["stranger", "", "item-", "lock-1"])
def test_znodes_of_another_program_are_not_candidates(stranger: str) -> None:
    backlog = listed(locked={"ID1"})
    fill(backlog, [stranger, name(2)], set(), 0)
    assert backlog.pop(5, free, 0) == [place(2)]


@given(st.permutations(range(30)), st.sets(st.integers(0, 29)), st.integers(1, 7))
def test_every_free_item_is_offered_once_and_in_order(numbers: list[int], locked: set[int], step: int) -> None:
    backlog = listed(*numbers, locked={f"ID{number}" for number in locked})
    popped: list[str] = []
    while some := backlog.pop(step, free, 0):
        popped += some
    assert popped == [place(number) for number in range(30) if number not in locked]


@given(st.lists(st.text("abc", min_size=1), unique=True, min_size=1), st.text())
def test_exactly_one_live_consumer_owns_an_item(consumers: list[str], item: str) -> None:
    shares = [Partition.among(consumer, consumers) for consumer in consumers]
    assert sorted(share.distance(item) for share in shares) == list(range(len(consumers)))
    assert sum(share.steal_delay(item) == 0 for share in shares) == 1


def test_a_consumer_missing_from_the_registry_takes_as_if_alone() -> None:
    assert Partition.among("me", ["you", "them"]).alone


def test_an_item_of_another_consumer_is_taken_only_after_a_wait() -> None:
    backlog = Backlog(Random(1))
    mine = Partition.among("a", ["a", "b"])
    backlog.reshare(mine)
    numbers = range(20)
    backlog.begin_listing("items")
    fill(backlog, [name(number) for number in numbers], set(), 100.0)
    own = [place(number) for number in numbers if not mine.distance(name(number), mine.offset("items"))]
    assert 0 < len(own) < 20
    assert backlog.pop(30, free, now=100.0) == own
    assert backlog.steal(free, now=100.001) == []
    due = backlog.next_steal(free)
    assert due is not None
    stolen = backlog.steal(free, now=due)
    assert stolen
    assert not set(stolen) & set(own)


def test_an_item_that_this_consumer_holds_itself_is_never_due_for_stealing() -> None:
    backlog = Backlog(Random(1))
    mine = Partition.among("a", ["a", "b"])
    backlog.reshare(mine)
    number = next(number for number in range(20) if mine.distance(name(number), mine.offset("items")))
    backlog.add_reported("items", {name(number): f"ID{number}"}, 1.0)
    assert backlog.next_steal(free) is not None
    assert backlog.next_steal(lambda held: held == f"ID{number}") is None


@pytest.mark.parametrize("later", ["a", "b"])
def test_an_item_may_be_stolen_from_the_announced_moment_on(later: str) -> None:
    """This includes an item that has moved into this consumer's share. A timer that is too early would run again."""
    backlog = Backlog(Random(1))
    mine = Partition.among("a", ["a", "b"])
    backlog.reshare(mine)
    number = next(number for number in range(20) if mine.distance(name(number), mine.offset("items")))
    backlog.add_reported("items", {name(number): f"ID{number}"}, 1.0)
    backlog.reshare(Partition.among(later, ["a", "b"]))
    due = backlog.next_steal(free)
    assert due is not None
    assert backlog.no_steal_before is not None
    assert backlog.no_steal_before <= due
    assert not backlog.may_steal(free, due - 0.001)
    assert backlog.may_steal(free, due + 0.001)


def foreign() -> ForeignBacklog:
    return ForeignBacklog(Random(1), curator("/queue"), lambda: 0)


def test_a_foreign_item_reported_during_a_listing_keeps_its_place() -> None:
    """The server may have read the names before the item was created, so that the listing does not contain it."""
    backlog = foreign()
    backlog.begin_listing("items")
    backlog.add_reported("items", {"queue-0000000002": "0000000002"}, 0)
    fill(backlog, ["queue-0000000001"], set(), 0)
    backlog.add_reported("items", {"queue-0000000003": "0000000003"}, 0)
    assert backlog.pop(5, free, 0) == [f"items/queue-000000000{number}" for number in (1, 2, 3)]


def test_a_foreign_item_returned_during_a_listing_is_offered_once() -> None:
    backlog = foreign()
    backlog.begin_listing("items")
    backlog.put_back(["items/queue-0000000001"])
    fill(backlog, ["queue-0000000001", "queue-0000000002"], {"queue-0000000001"}, 0)
    assert backlog.pop(5, free, 0) == ["items/queue-0000000001", "items/queue-0000000002"]


def relisted_by(rank: int, count: int, numbers: range) -> Backlog:
    """Return the items that one consumer keeps of two listings with a long time between them."""
    backlog = Backlog(Random(rank))
    backlog.reshare(Partition(rank, count))
    for now in (0, 100):
        backlog.begin_listing("items")
        fill(backlog, [name(number) for number in numbers], set(), now)
    return backlog


def test_consumers_take_few_stale_items_of_others_and_rarely_the_same_ones() -> None:
    numbers, taken = range(1600), list[str]()
    for rank in range(16):
        backlog = relisted_by(rank, 16, numbers)
        own = {place(number) for number in numbers if not backlog._distance("items", name(number))}
        stale = [item for item in backlog.pop(1600, free, 100) if item not in own]
        assert 0 < len(stale) <= 1600 // 16
        taken += stale
    assert len(set(taken)) > 0.9 * len(taken)


def test_consumers_without_own_items_rarely_take_the_same_ones() -> None:
    of_first = range(-Partition(0, 16).offset("items") % 16, 1600, 16)
    taken = list[str]()
    for rank in range(1, 16):
        backlog = relisted_by(rank, 16, of_first)
        assert backlog.pop(1600, free, 100) == [], "no item is taken without a comparison of the distances"
        taken += backlog.steal(free, now=100)
    assert taken
    assert len(set(taken)) > 0.8 * len(taken)
