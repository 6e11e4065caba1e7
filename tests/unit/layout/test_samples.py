"""Stored samples are small and are read back as they were written. Other data is refused."""

from __future__ import annotations

import json
import random
import zlib

import pytest

from aiozkqueue.layout import MalformedError
from aiozkqueue.layout.samples import COLUMNS, MISSING, SLOTS, SPAN, SamplePaths, SampleRecord

BEGIN = 1_767_225_600


def test_samples_are_read_back_as_they_were_added() -> None:
    record = SampleRecord(BEGIN)
    record.add(BEGIN, {"orders": (10, 5, 4, 1, 0)})
    record.add(BEGIN + 30, {"orders": (15, 0, 0, 0, 2), "mails": (1, 1, 1, 0, 0)})
    record.add(BEGIN + 61, {"mails": (2, 2, 2, 0, 0)})
    again = SampleRecord.decode(record.encode())
    assert again == record
    assert list(again.at) == [0, 30, 61]
    assert list(again.queues["orders"][0]) == [10, 15, MISSING]
    assert list(again.queues["mails"][1]) == [MISSING, 1, 2]


def test_stored_samples_have_this_form() -> None:
    record = SampleRecord(BEGIN)
    record.add(BEGIN, {"q": (10, 5, 4, 1, 0)})
    record.add(BEGIN + 30, {})
    record.add(BEGIN + 60, {"q": (12, 3, 3, 0, 0)})
    assert json.loads(zlib.decompress(record.encode())) == {
        "begin": BEGIN,
        "at": [0, 30, 60],
        "queues": {"q": [[10, None, 2], [5, None, -2], [4, None, -1], [1, None, -1], [0, None, 0]]},
    }


def test_the_znodes_of_a_day_are_a_ring() -> None:
    paths = SamplePaths("/zms")
    first = paths.slot(BEGIN)
    assert paths.slot(BEGIN + SLOTS * SPAN) == first
    assert len({paths.slot(BEGIN + number * SPAN) for number in range(3 * SLOTS)}) == SLOTS
    assert (SLOTS - 1) * SPAN == 24 * 3600


@pytest.mark.parametrize(("queues", "busy", "most"), [(20, 20, 10_000), (500, 50, 35_000), (500, 500, 250_000)])
def test_half_an_hour_of_samples_fits_in_a_znode(queues: int, busy: int, most: int) -> None:
    drawn = random.Random(1)
    record, put = SampleRecord(BEGIN), [0] * queues
    for at in range(0, SPAN, 30):
        figures: dict[str, tuple[int, ...]] = {}
        for number in range(queues):
            rate = 3000 if number < busy else 0
            put[number] += drawn.randint(0, 30 * rate)
            waiting = drawn.randint(0, 100 * rate)
            figures[f"queue-of-a-service-{number}"] = (put[number], waiting + 5, waiting, 5 if rate else 0, 3)
        record.add(BEGIN + at, figures)
    assert len(record.encode()) < most


@pytest.mark.parametrize(
    "fields",
    [
        [],
        {},
        {"begin": BEGIN, "at": [0]},
        {"begin": "x", "at": [0], "queues": {}},
        {"begin": BEGIN, "at": [0, "1"], "queues": {}},
        {"begin": BEGIN, "at": list(range(121)), "queues": {}},
        {"begin": BEGIN, "at": [0], "queues": {"q": [[1]]}},
        {"begin": BEGIN, "at": [0], "queues": {"q": [[1, 2]] * len(COLUMNS)}},
        {"begin": BEGIN, "at": [0], "queues": {"q": [[-5]] * len(COLUMNS)}},
        {"begin": BEGIN, "at": [0], "queues": {"q": [[True]] * len(COLUMNS)}},
        {"begin": BEGIN, "at": [0], "queues": {"q": [[2**60]] * len(COLUMNS)}},
    ],
)
def test_other_data_is_refused(fields: object) -> None:
    with pytest.raises(MalformedError):
        SampleRecord.decode(zlib.compress(json.dumps(fields).encode()))


def test_data_that_would_decompress_to_gigabytes_is_refused() -> None:
    with pytest.raises(MalformedError):
        SampleRecord.decode(zlib.compress(b"[" * 50_000_000))
