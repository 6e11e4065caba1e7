"""Makes Arrow batches from pages of any size: of about a thousand rows, or of fewer if the rows are large."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final, TypeAlias

from .bundle_arrays import ColumnarPage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from .columns import DecodedRows, RowLayout

    #: Rows, or messages of bundles that are converted together.
    Page: TypeAlias = DecodedRows | ColumnarPage

#: Approximate number of rows in a batch.
BATCH: Final = 1000
#: Approximate size of the payloads of a batch, bytes.
MOST_BYTES: Final = 4 * 1024 * 1024


def with_rows(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch] | None:
    """Return the batches that have rows, or None if no batch has any. This waits for the first row."""
    full = (batch for batch in batches if batch.num_rows)
    first = next(full, None)
    return None if first is None else chain((first,), full)


class Batches:
    """Makes batches from pages, in order."""

    def __init__(self, layout: RowLayout) -> None:
        self._layout = layout
        self._rows: list[list[object]] = []
        self._size = 0

    def add(self, page: Page) -> Iterator[pa.RecordBatch]:
        """Add a page; yield the batches that are full."""
        if isinstance(page, ColumnarPage):
            yield from self.finish()
            yield self._layout.columns(page.parts)
            return
        self._rows += page.rows
        self._size += page.size
        if len(self._rows) >= BATCH or self._size >= MOST_BYTES:
            yield from self.finish()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield the remaining rows."""
        if self._rows:
            yield self._layout.batch(self._rows)
            self._rows = []
        self._size = 0
