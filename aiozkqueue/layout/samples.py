"""Stored samples of the queues, for charts: ``<root>/.samples/<slot>``.

Each znode holds the samples of half an hour, of all queues: zlib-compressed JSON, ``{"begin": 1767225600, "at": [0, 30,
60], "queues": {"orders": [[120, 3, null], …]}}``. ``begin`` is the begin of the half hour in seconds since 1970, and
``at`` holds the times of the samples in seconds after it. A queue has one list for each of `COLUMNS`. Each value is the
difference from the value before, and null if the queue could not be read.

There are `SLOTS` znodes, of 24 hours and the current half hour. The slot of a half hour is its number modulo `SLOTS`,
so each is overwritten when its time has passed.
"""

from __future__ import annotations

import json
import zlib
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from .errors import MalformedError
from .paths import check_root

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic import JsonValue

#: The time that one znode covers, seconds.
SPAN: Final = 1800
#: The number of znodes: 24 hours, and the current half hour.
SLOTS: Final = 49
#: The figures of a queue that are kept, in their order.
COLUMNS: Final = ("put", "size", "waiting", "in_flight", "dead")
#: The maximum number of samples in a znode.
MOST_SAMPLES: Final = 120
#: The maximum size of the uncompressed JSON, bytes.
MOST_BYTES: Final = 8 * 1024 * 1024
#: The largest figure: the largest integer that every JSON implementation keeps exactly.
LARGEST: Final = 2**53 - 1
#: Stands for a figure that was not read.
MISSING: Final = -1
_WHAT: Final = "samples"
_LEVEL: Final = 3


class SamplePaths:
    """The znodes of the samples. Raises: InvalidOptionError: see `check_root`."""

    __slots__ = ("base",)

    def __init__(self, root: str) -> None:
        check_root(root)
        self.base: Final = f"{root}/.samples"

    def slot(self, begin: int) -> str:
        """Return the path of the samples of the half hour that begins at ``begin``, seconds since 1970."""
        return f"{self.base}/{begin // SPAN % SLOTS:02d}"


@dataclass(slots=True)
class SampleRecord:
    """The samples of half an hour."""

    begin: int
    """Seconds since 1970."""
    at: array[int] = field(default_factory=lambda: array("q"))
    """The times of the samples, seconds after the begin."""
    queues: dict[str, tuple[array[int], ...]] = field(default_factory=dict[str, "tuple[array[int], ...]"])
    """The figures of each queue: an array for each of `COLUMNS`, with a value for each time."""

    def add(self, at: int, figures: Mapping[str, Sequence[int]]) -> None:
        """Add a sample of queues: the time in seconds since 1970, and the figures of `COLUMNS` by queue."""
        for name in figures.keys() - self.queues.keys():
            self.queues[name] = tuple(array("q", [MISSING] * len(self.at)) for _ in COLUMNS)
        self.at.append(at - self.begin)
        for name, columns in self.queues.items():
            for column, value in zip(columns, figures.get(name, [MISSING] * len(COLUMNS)), strict=True):
                column.append(value)

    def encode(self) -> bytes:
        """Return the bytes to store."""
        queues = {name: [_differences(column) for column in columns] for name, columns in self.queues.items()}
        text = json.dumps({"begin": self.begin, "at": list(self.at), "queues": queues}, separators=(",", ":"))
        return zlib.compress(text.encode(), _LEVEL)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode samples.

        Raises:
            MalformedError: the data is not a record of samples.
        """
        unpacker = zlib.decompressobj()
        try:
            fields: JsonValue = json.loads(unpacker.decompress(data, MOST_BYTES))
        except (zlib.error, ValueError, RecursionError) as error:
            raise MalformedError(f"{_WHAT}: {error}") from None
        stored = fields.get("queues") if isinstance(fields, dict) else None
        if not isinstance(fields, dict) or not isinstance(stored, dict):
            raise MalformedError(f"{_WHAT} are not an object with queues")
        at = _numbers([fields.get("begin"), *_list(fields.get("at"))])
        begin, times = at[0], at[1:]
        if len(times) > MOST_SAMPLES or not 0 <= begin <= LARGEST:
            raise MalformedError(f"{_WHAT} have {len(times)} times since {begin}")
        queues = {
            name: tuple(_sums(_list(column), len(times)) for column in _list(columns))
            for name, columns in stored.items()
        }
        if any(len(columns) != len(COLUMNS) for columns in queues.values()):
            raise MalformedError(f"{_WHAT}: a queue has columns other than {', '.join(COLUMNS)}")
        return cls(begin, array("q", times), queues)


def _differences(column: array[int]) -> list[int | None]:
    found: list[int | None] = []
    before = 0
    for value in column:
        found.append(None if value == MISSING else value - before)
        before = before if value == MISSING else value
    return found


def _sums(differences: list[JsonValue], length: int) -> array[int]:
    if len(differences) != length:
        raise MalformedError(f"{_WHAT}: {len(differences)} values for {length} times")
    values = array("q")
    total = 0
    for difference in differences:
        if difference is not None:
            total += _numbers([difference])[0]
            if not 0 <= total <= LARGEST:
                raise MalformedError(f"{_WHAT}: {total} is not a figure of a queue")
        values.append(MISSING if difference is None else total)
    return values


def _numbers(values: list[JsonValue]) -> list[int]:
    numbers = [
        value for value in values if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST
    ]
    if len(numbers) < len(values):
        raise MalformedError(f"{_WHAT}: a value is not an integer in range")
    return numbers


def _list(value: JsonValue) -> list[JsonValue]:
    if not isinstance(value, list):
        raise MalformedError(f"{_WHAT}: a value is not a list")
    return value
