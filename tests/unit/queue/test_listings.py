"""The names of a listing that collectors keep, however the listing is split."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from aiozkqueue.queue.candidates.collectors import Earliest, Matching


def names(sequences: list[int]) -> list[str]:
    return [f"item-i{'even' if sequence % 2 == 0 else 'odd'}-{sequence:010d}" for sequence in sequences]


def is_even(name: str) -> bool:
    return "even" in name


pieces = st.lists(st.integers(0, 2**31 - 1), unique=True, max_size=60).flatmap(
    lambda sequences: st.lists(st.integers(0, 60), max_size=8).map(
        lambda cuts: [
            sequences[start:end] for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(sequences)], strict=True)
        ]
    )
)


@settings(deadline=None)
@given(pieces)
def test_exactly_the_matching_names_are_kept(listing: list[list[int]]) -> None:
    matching = Matching(is_even)
    for piece in listing:
        matching.take(names(piece))
    everything = [name for piece in listing for name in names(piece)]
    assert sorted(matching.names) == sorted(filter(is_even, everything))


@settings(deadline=None)
@given(pieces, st.integers(1, 20))
def test_the_first_matching_names_are_kept_in_order(listing: list[list[int]], limit: int) -> None:
    earliest = Earliest(limit, is_even)
    for piece in listing:
        earliest.take(names(piece))
    everything = sorted(name for piece in listing for name in piece if name % 2 == 0)
    assert earliest.names() == names(everything[:limit])


def test_a_long_listing_tests_and_holds_only_a_few_names() -> None:
    tested: list[str] = []
    held = 0

    def test(name: str) -> bool:
        tested.append(name)
        return True

    earliest = Earliest(100, test)
    sequences = list(range(20_000))
    Random(1).shuffle(sequences)
    for start in range(0, 20_000, 50):
        earliest.take(names(sequences[start : start + 50]))
        held = max(held, earliest.held)
    assert earliest.names() == names(list(range(100)))
    assert held < 125 + 50
    assert len(tested) < 2_000
