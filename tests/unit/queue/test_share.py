"""Whose item is it: dealt out among the live consumers, and left to each for a while."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from aiozkqueue.queue.candidates.share import MOST_DOUBLINGS, STEAL_AFTER, Share

if TYPE_CHECKING:
    from random import Random

CONSUMERS = st.lists(st.text("abcdef0123456789-", min_size=1, max_size=8), unique=True, min_size=1, max_size=12)
ITEM = st.integers(0, 10**9).map(lambda number: f"item-iID{number}-{number:010d}")


def shares(consumers: list[str]) -> list[Share]:
    return [Share.among(one, consumers) for one in consumers]


@given(CONSUMERS, st.lists(ITEM, unique=True))
def test_each_item_is_the_own_one_of_exactly_one(consumers: list[str], items: list[str]) -> None:
    for item in items:
        assert [share.distance(item) for share in shares(consumers)].count(0) == 1


@given(CONSUMERS, ITEM)
def test_the_others_stand_in_line_for_it_each_at_a_place_of_its_own(consumers: list[str], item: str) -> None:
    assert sorted(share.distance(item) for share in shares(consumers)) == list(range(len(consumers)))


@given(CONSUMERS, ITEM)
def test_the_further_back_in_line_the_longer_the_patience(consumers: list[str], item: str) -> None:
    in_line = sorted(shares(consumers), key=lambda share: share.distance(item))
    patience = [share.patience(item) for share in in_line]
    assert patience[0] == 0
    assert patience[1:2] in ([], [STEAL_AFTER])
    for one, following in pairwise(patience[1:]):
        assert following == min(2 * one, STEAL_AFTER * 2**MOST_DOUBLINGS)
    assert max(patience) < 2  # seconds: nothing is left lying for longer, however many there are


@given(CONSUMERS, ITEM, st.randoms())
def test_in_what_order_the_registry_is_listed_does_not_matter(consumers: list[str], item: str, random: Random) -> None:
    shuffled = list(consumers)
    random.shuffle(shuffled)
    for one in consumers:
        assert Share.among(one, consumers).distance(item) == Share.among(one, shuffled).distance(item)


def test_shares_are_of_about_the_same_size() -> None:
    consumers = [f"{number:x}-1" for number in range(16)]
    items = [f"item-iab{number:06d}-{number:010d}" for number in range(16_000)]
    for share in shares(consumers):
        assert 800 < sum(not share.distance(item) for item in items) < 1200


def test_one_that_is_alone_or_not_registered_yet_takes_everything() -> None:
    for share in (Share(), Share.among("a", ["a"]), Share.among("a", []), Share.among("a", ["b", "c"])):
        assert share.alone
        assert share.distance("item-iID-0000000001") == 0
        assert share.patience("item-iID-0000000001") == 0
