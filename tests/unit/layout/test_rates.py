"""The record of a shared rate, and the blocks of slots that are derived from it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiozkqueue.errors import InvalidNameError
from aiozkqueue.layout.errors import MalformedError
from aiozkqueue.layout.rates import RatePaths, RateRecord


def test_a_rate_is_stored_at_its_name() -> None:
    assert RatePaths("/zms").rate("bank") == "/zms/.rates/bank"
    with pytest.raises(InvalidNameError):
        RatePaths("/zms").rate("a/b")


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"after": -1}', b'{"after": 1.5, "length": 2}', b'{"length": "x"}'])
def test_malformed_records_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedError):
        RateRecord.decode(data)


def test_an_empty_znode_has_no_block() -> None:
    assert RateRecord.decode(b"") == RateRecord()
    assert RateRecord().end(mtime=1_000) == 0


@given(
    st.lists(
        st.tuples(st.integers(-5_000, 5_000), st.integers(1, 2_000_000)), min_size=1, max_size=30
    )  # the steps of the leader's clock (ms), which may be negative, and the lengths of blocks (µs)
)
def test_blocks_never_overlap_whatever_the_clock_of_the_leader_does(leases: list[tuple[int, int]]) -> None:
    mtime, last, blocks = 1_700_000_000_000, RateRecord(), list[tuple[int, int]]()
    before = mtime
    for step, length in leases:
        record = RateRecord.decode(RateRecord(last.end(before), length).encode())
        mtime += step
        blocks.append((record.begin(mtime), record.end(mtime)))
        assert blocks[-1][0] >= mtime * 1000
        assert blocks[-1][1] - blocks[-1][0] == length
        last, before = record, mtime
    assert all(end <= begin for (_, end), (begin, _) in pairwise(blocks))
