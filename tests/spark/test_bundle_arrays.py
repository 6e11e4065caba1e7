"""Arrow arrays made from the bytes of bundles have the same values as a conversion of each message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from aiozkqueue.layout import (
    ID_DIGITS,
    MAGIC,
    BundleName,
    BundleRecord,
    Header,
    LockRecord,
    bundle_prefix,
    encode,
    encode_bundle,
)
from aiozkqueue.queue.redelivery.bundles import BundleState
from aiozkqueue.spark.batching import Batches
from aiozkqueue.spark.bundle_arrays import ColumnarPage
from aiozkqueue.spark.columns import RowLayout, default_schema
from aiozkqueue.spark.options import Content, parse_options
from aiozkqueue.spark.reading import bundled_values, columnar_part_of
from aiozkqueue.zookeeper import Versioned

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

OPTIONS = parse_options({"hosts": "localhost:1", "queue": "orders"})
SCHEMAS = {
    "all columns": default_schema(Content.ITEMS),
    "two columns": StructType([StructField("body", BinaryType()), StructField("id", StringType())]),
}
BUNDLES = st.tuples(st.lists(st.binary(max_size=40), min_size=1, max_size=20), st.integers(0, 2**40), st.booleans())


def bundle(bodies: Sequence[bytes], created: int, record: BundleRecord | None, *, locked: bool = False) -> BundleState:
    """Return a bundle as a task reads it."""
    ids = [f"{number:0{ID_DIGITS}d}" for number in range(len(bodies))]
    name = BundleName.parse(f"{bundle_prefix('y' * ID_DIGITS, ids)}0000000007")
    assert name is not None
    lock = Versioned(LockRecord("claim", "ledger:spark").encode(), 0, 0)
    stored = None if record is None else Versioned(record.encode(), 0, 0)
    return BundleState(name, Versioned(encode_bundle(ids, bodies), created, 0), stored, lock if locked else None)


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
@given(bundles=st.lists(BUNDLES, min_size=1, max_size=4), data=st.data())
def test_columns_of_bundles_equal_their_rows(
    schema: StructType, bundles: list[tuple[list[bytes], int, bool]], data: st.DataObject
) -> None:
    layout = RowLayout(schema, OPTIONS)
    rows: list[list[object]] = []
    batches = Batches(layout)
    made: list[pa.RecordBatch] = []
    for bodies, created, locked in bundles:
        state = bundle(bodies, created, BundleRecord("claim") if locked else None, locked=locked)
        first = data.draw(st.integers(0, len(bodies) - 1))
        last = data.draw(st.integers(first + 1, len(bodies)))
        expected = layout.decode(bundled_values(state, state.messages()[first:last], layout))
        rows += expected.rows
        alike = columnar_part_of(state, layout, first, last)
        assert (alike is None) == (MAGIC in b"".join(bodies))
        made += batches.add(expected if alike is None else ColumnarPage([alike, alike]))
        if alike is not None:
            rows += expected.rows
    made += batches.finish()
    for batch in made:
        batch.validate(full=True)
        assert batch.schema == layout.batch([]).schema
    assert [row for batch in made for row in batch.to_pylist()] == layout.batch(rows).to_pylist()


@pytest.mark.parametrize(
    ("bodies", "record", "schema"),
    [
        ([encode(b"with a key", Header(key="k"))], None, default_schema(Content.ITEMS)),
        ([b"a payload with the bytes " + MAGIC], None, default_schema(Content.ITEMS)),
        ([b"1", b"2"], BundleRecord("claim", done=1), default_schema(Content.ITEMS)),
        ([b"1", b"2"], BundleRecord("claim", attempts={1: 3}), default_schema(Content.ITEMS)),
        ([b'{"n": "text"}'], None, StructType([StructField("n", StringType())])),
    ],
    ids=["an envelope", "the mark of an envelope", "a message has left", "an attempt was counted", "decoded payloads"],
)
def test_messages_that_differ_in_more_than_their_bodies_are_converted_one_by_one(
    bodies: list[bytes], record: BundleRecord | None, schema: StructType
) -> None:
    state = bundle(bodies, 5, record)
    assert columnar_part_of(state, RowLayout(schema, OPTIONS), 0, len(bodies)) is None
