"""The owner of an item: the live consumers share the items, and each item is reserved for its owner for a while."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from aiozkqueue.layout import IdSource
from aiozkqueue.queue.candidates.partition import FIRST_WAIT, LAST_WAIT, Partition

if TYPE_CHECKING:
    from random import Random

CONSUMERS = st.lists(st.text("abcdef0123456789-", min_size=1, max_size=8), unique=True, min_size=1, max_size=12)
SINGLE = st.integers(0, 10**9).map(lambda number: f"item-iID{number}-{number:010d}")
MEMBER = st.builds("item-m{1:02d}-iID{0}-{0:010d}".format, st.integers(0, 10**9), st.integers(0, 63))
ITEM = SINGLE | MEMBER


def shares(consumers: list[str]) -> list[Partition]:
    return [Partition.among(consumer, consumers) for consumer in consumers]


@given(CONSUMERS, st.lists(ITEM, unique=True))
def test_exactly_one_consumer_owns_each_item(consumers: list[str], items: list[str]) -> None:
    for item in items:
        assert [share.distance(item) for share in shares(consumers)].count(0) == 1


@given(CONSUMERS, ITEM)
def test_each_consumer_has_a_different_distance_to_an_item(consumers: list[str], item: str) -> None:
    assert sorted(share.distance(item) for share in shares(consumers)) == list(range(len(consumers)))


@given(CONSUMERS, ITEM)
def test_consumers_at_a_greater_distance_wait_longer(consumers: list[str], item: str) -> None:
    in_line = sorted(shares(consumers), key=lambda share: share.distance(item))
    patience = [share.steal_delay(item) for share in in_line]
    assert patience[0] == 0
    assert patience[1:2] in ([], [FIRST_WAIT])
    assert all(wait < following for wait, following in pairwise(patience))
    assert max(patience) <= LAST_WAIT < 0.05  # seconds, whatever the number of consumers


@given(st.integers(1, 200), st.integers(0, 10**9), st.integers(0, 10**6))
def test_consecutive_messages_are_divided_one_to_each_consumer(count: int, first: int, offset: int) -> None:
    items = [f"item-iID{number}-{number:010d}" for number in range(first, first + count)]
    assert sorted(len(Partition(rank, count).own(items, offset)) for rank in range(count)) == [1] * count


@given(st.integers(1, 200), st.integers(2, 64), st.integers(0, 5000), st.integers(0, 10**9), st.integers(0, 10**6))
def test_messages_that_have_left_bundles_are_divided_one_to_each_consumer(
    count: int, bundle: int, before: int, sequence: int, offset: int
) -> None:
    """The messages were put together, so their ids are consecutive, also across bundles."""
    source = IdSource()
    ids = [source.next() for _ in range(before + count)][before:]
    items = [
        f"item-m{number % bundle:02d}-i{message_id}-{sequence + number // bundle:010d}"
        for number, message_id in enumerate(ids)
    ]
    assert sorted(len(Partition(rank, count).own(items, offset)) for rank in range(count)) == [1] * count


@given(CONSUMERS, st.lists(ITEM | st.text(max_size=20), unique=True), st.integers(0, 10**6), st.booleans())
def test_the_own_items_of_a_listing_are_those_at_distance_zero(
    consumers: list[str],
    names: list[str],
    offset: int,
    scattered: bool,  # noqa: FBT001 - passed by name
) -> None:
    for rank in range(len(consumers)):
        share = Partition(rank, len(consumers), scattered=scattered)
        assert share.own(names, offset) == [name for name in names if not share.distance(name, offset)]


def test_items_of_a_busy_consumer_are_spread_over_all_others() -> None:
    count = 16
    left = [f"item-iID{number}-{number:010d}" for number in range(0, 16_000, count)]  # all items of one consumer
    busy = next(rank for rank in range(count) if not Partition(rank, count).distance(left[0]))
    for rank in set(range(count)) - {busy}:
        assert 30 < sum(Partition(rank, count).distance(item) == 1 for item in left) < 110, "the mean is about 67"


def test_a_selection_is_divided_evenly_whatever_its_sequence_numbers() -> None:
    even = [f"item-iID{number}-{number:010d}" for number in range(0, 16_000, 2)]
    for rank in range(4):
        assert 1600 < len(Partition(rank, 4, scattered=True).own(even)) < 2400


@given(CONSUMERS, ITEM, st.randoms())
def test_the_order_of_the_registry_does_not_matter(consumers: list[str], item: str, random: Random) -> None:
    shuffled = list(consumers)
    random.shuffle(shuffled)
    for consumer in consumers:
        assert Partition.among(consumer, consumers).distance(item) == Partition.among(consumer, shuffled).distance(item)


def test_shares_are_of_about_the_same_size() -> None:
    consumers = [f"{number:x}-1" for number in range(16)]
    items = [f"item-iab{number:06d}-{number:010d}" for number in range(16_000)]
    for share in shares(consumers):
        assert 800 < sum(not share.distance(item) for item in items) < 1200


def test_a_consumer_that_is_alone_or_not_yet_registered_takes_everything() -> None:
    for share in (Partition(), Partition.among("a", ["a"]), Partition.among("a", []), Partition.among("a", ["b", "c"])):
        assert share.alone
        assert share.distance("item-iID-0000000001") == 0
        assert share.steal_delay("item-iID-0000000001") == 0
