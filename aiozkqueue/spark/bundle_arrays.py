"""Arrow arrays from the bytes of bundles, without a Python object for each message.

The messages of a bundle differ only in their ids and bodies. Ids have one length, and bodies follow each other as they
do in an Arrow array, so both are copied bundle by bundle. Every other column repeats one value for each bundle.
"""

from __future__ import annotations

from array import array
from itertools import accumulate, chain, groupby
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from aiozkqueue.layout import ID_DIGITS, MAGIC

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aiozkqueue.layout import BundleTable


class ColumnarPart(NamedTuple):
    """Messages of one bundle that differ only in their ids and bodies."""

    table: BundleTable
    values: Mapping[str, object]
    """The other properties of each of them."""

    @property
    def size(self) -> int:
        """The number of messages."""
        return len(self.table.lengths)


def are_bare(table: BundleTable) -> bool:
    """Whether the messages of a bundle consist only of payloads, so that their bytes are their bodies."""
    return table.data.find(MAGIC, table.start) < 0


class ColumnarPage(NamedTuple):
    """Messages of bundles, in order, that need no conversion row by row."""

    parts: list[ColumnarPart]


def record_batch(schema: pa.Schema, properties: Sequence[str], parts: Sequence[ColumnarPart]) -> pa.RecordBatch:
    """Make a batch of these messages, in order; ``properties`` are the properties in the columns of the schema."""
    arrays = [_array(name, field.type, parts) for name, field in zip(properties, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(name: str, kind: pa.DataType, parts: Sequence[ColumnarPart]) -> pa.Array:
    if name == "id":
        total = sum(part.size for part in parts)
        ends = array("i", range(0, ID_DIGITS * (total + 1), ID_DIGITS))
        return _of_bytes(kind, ends, b"".join(part.table.ids for part in parts))
    if name == "body":
        ends = array("i", accumulate(chain.from_iterable(part.table.lengths for part in parts), initial=0))
        return _of_bytes(kind, ends, b"".join(part.table.bodies for part in parts))
    runs = groupby(parts, key=lambda part: part.values.get(name))
    return pa.concat_arrays([_repeated(value, kind, sum(part.size for part in run)) for value, run in runs])


def _of_bytes(kind: pa.DataType, ends: array[int], data: bytes) -> pa.Array:
    return pa.Array.from_buffers(kind, len(ends) - 1, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def _repeated(value: object, kind: pa.DataType, count: int) -> pa.Array:
    return pa.nulls(count, kind) if value is None else pa.repeat(pa.scalar(value, kind), count)
