"""The ids of messages that were cancelled while held."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aiozkqueue.layout.cancelled import cancelled_ids, with_cancelled


def test_the_newest_hundred_ids_are_kept() -> None:
    data = b""
    for number in range(150):
        data = with_cancelled(data, f"id{number}")
    assert cancelled_ids(data) == [f"id{number}" for number in range(50, 150)]
    assert with_cancelled(b"", "a") == b"a"
    assert with_cancelled(b"a", "b") == b"a\nb"


@given(st.binary(max_size=100) | st.just(b"x" * 20_000))
def test_bytes_of_another_program_are_read_within_bounds(data: bytes) -> None:
    assert len(cancelled_ids(data)) <= 100
    assert cancelled_ids(with_cancelled(data, "a"))[-1] == "a"
