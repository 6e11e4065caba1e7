"""Batches that are divided among tasks by size."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

import aiozkqueue as zq
from aiozkqueue.batches.manifests import Page
from aiozkqueue.spark import dividing
from aiozkqueue.spark.columns import default_schema
from aiozkqueue.spark.dividing import Piece, cut, divide
from aiozkqueue.spark.options import parse_options
from aiozkqueue.spark.streaming import QueueStreamReader
from tests.spark.test_batch import put
from tests.spark.test_parts import use_bundles

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.timeout(300)

pieces = st.lists(st.builds(Piece, st.integers(1, 50), st.integers(1, 100_000)), max_size=20)


@given(pieces, st.integers(1, 40))
def test_shares_have_about_the_same_size_and_none_is_empty(pieces: Sequence[Piece], shares: int) -> None:
    sizes = [piece.size for piece in pieces for _ in range(piece.messages)]
    divided = divide(pieces, shares)
    assert sum(divided) == len(sizes)
    assert len(divided) == min(shares, len(sizes))
    begin = 0
    for count in divided:
        assert count > 0
        share = sizes[begin : begin + count]
        assert sum(share) <= sum(sizes) / len(divided) + max(sizes) + 1e-3
        begin += count


@pytest.mark.parametrize(
    ("pieces", "shares", "divided"),
    [
        ([], 3, []),
        ([Piece(10)], 4, [3, 2, 3, 2]),
        ([Piece(3)], 5, [1, 1, 1]),
        ([Piece(1, 1000), Piece(9, 1)], 4, [1, 1, 1, 7]),
        ([Piece(9, 1), Piece(1, 1000)], 4, [7, 1, 1, 1]),
        ([Piece(100, 10), Piece(10, 100)], 2, [100, 10]),
    ],
)
def test_pieces_are_divided_as_in_these_examples(pieces: Sequence[Piece], shares: int, divided: list[int]) -> None:
    assert divide(pieces, shares) == divided


@given(st.lists(st.integers(1, 9), max_size=6), st.integers(1, 12))
def test_the_parts_of_pages_have_each_message_once_and_shares_of_the_given_sizes(pages: list[int], shares: int) -> None:
    sizes = divide([Piece(sum(pages))], shares)
    parts = cut([Page(str(number), messages, []) for number, messages in enumerate(pages)], sizes)
    assert [sum(part.stop - part.begin for part in share) for share in parts] == sizes
    found = [(part.page, message) for share in parts for part in share for message in range(part.begin, part.stop)]
    assert found == [(str(page), message) for page, messages in enumerate(pages) for message in range(messages)]


#: The large messages are in the first third.
BODIES = [b"x" * 50_000, *[b"y"] * 40, b"x" * 50_000, *[b"y"] * 80]


@pytest.mark.parametrize(
    "bundles", [pytest.param(False, marks=pytest.mark.slow), True], ids=["single items", "bundles"]
)
@pytest.mark.parametrize("sample", [500, 64], ids=["each size is read", "some sizes are read"])
def test_tasks_of_a_stream_read_about_the_same_number_of_bytes(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch, *, bundles: bool, sample: int
) -> None:
    monkeypatch.setattr(dividing, "_SAMPLE", sample)
    if bundles:
        use_bundles(options)
    else:
        single_items(options)
    ids = put(options, *BODIES)
    parsed = parse_options({**options, "minPartitions": "2"})
    reader = QueueStreamReader(default_schema(parsed.content), parsed)
    try:
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        shares = reader.partitions(start, end)
        read = [
            [(row["id"], len(row["body"])) for batch in reader.read(share) for row in batch.to_pylist()]
            for share in shares
        ]
    finally:
        reader.stop()
    assert [message_id for share in read for message_id, _ in share] == ids
    sizes = [sum(size for _, size in share) for share in read]
    assert len(sizes) == 2
    assert max(sizes) < 60_000
    assert min(sizes) >= 50_000


def single_items(options: dict[str, str]) -> None:
    async def configure() -> None:
        async with zq.connect(options["hosts"], root=options["root"]) as session:
            await session.queue("orders").configure(zq.QueueConfig(bundle=1))

    asyncio.run(configure())
