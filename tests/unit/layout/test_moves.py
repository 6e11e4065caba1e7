"""Move records are read back as they were written, and records of earlier versions can be read."""

from __future__ import annotations

import json

import pytest

from aiozkqueue.dialects import curator
from aiozkqueue.layout import MalformedError
from aiozkqueue.layout.moves import MoveEnd, MoveRecord


def test_a_move_record_is_read_back_with_the_layouts_of_both_queues() -> None:
    dialect = curator("/app/orders", "/app/orders-locks", "priority")
    theirs = MoveEnd(dialect.path, dialect.settings())
    for record in (
        MoveRecord(MoveEnd("orders"), theirs, counters={"items": 7}),
        MoveRecord(theirs, MoveEnd("orders"), "failed", 3, 1_700_000_000_000, "one stays"),
        MoveRecord(theirs, theirs),
    ):
        assert MoveRecord.decode(record.encode()) == record


def test_a_move_record_without_layouts_is_read() -> None:
    stored = b'{"source":"old","target":"new","state":"running","moved":12}'
    assert MoveRecord.decode(stored) == MoveRecord(MoveEnd("old"), MoveEnd("new"), moved=12)
    assert MoveRecord(MoveEnd("old"), MoveEnd("new"), moved=12).encode() == stored


@pytest.mark.parametrize("end", [None, 7, ["orders"], {}, {"path": 7}, {"program": "kazoo"}])
def test_a_move_record_without_a_name_or_path_of_both_queues_is_refused(end: object) -> None:
    for fields in ({"source": end, "target": "new"}, {"source": "old", "target": end}):
        with pytest.raises(MalformedError):
            MoveRecord.decode(json.dumps({**fields, "state": "running"}).encode())
