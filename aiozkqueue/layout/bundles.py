"""Bundles: items that hold several messages in one znode, under one lock.

The name is ``bundle-m<count>-s<first id>-l<last id>-i<own id>-<sequence>``. If all its messages belong to one pending
batch, ``b<batch>-`` follows the count. The prefix differs from an item's, so that programs that know no bundles pass it
by instead of taking it for one message. A bundle has its own id: its lock is ``lock-<own id>``, and its record
``meta/bundle-<own id>``.

The data is never changed::

    f5 7a 71 62 | version, 1 byte | count, 2 bytes | nonce, 12 bytes
    | for each message: the rest of its id, 6 bytes; its length, 4 bytes
    | for each message: the bytes that it would have as an item

Numbers have the most significant byte first. All ids of a bundle begin with the same nonce and ascend.

The record exists from the claim of the bundle to the end of the claim, and is a JSON object: ``claim``, the id of the
claim; ``done``, the messages that have left the bundle, as the hexadecimal digits of a bit set; ``attempts``, the
counted attempts at the others, by position; ``errors``, the errors of the last attempts that failed, by position.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import accumulate, count, pairwise
from operator import lt
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from .envelope import encode
from .errors import MalformedError
from .fields import LARGEST_NUMBER, OBJECT_LIMIT, pop_text, read_object, storable_text, write_object
from .names import BATCH_FIELD, CLIENT_DIGITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pydantic import JsonValue

    from .envelope import Header

ERROR_LIMIT: Final = 500
"""Maximum characters of an error in the record of a bundle."""

BUNDLE_MAGIC: Final = b"\xf5zqb"
"""The first bytes of a bundle's data."""

MOST_BUNDLED: Final = 64
"""Maximum number of messages of a bundle."""

DEFAULT_BUNDLE: Final = 64
"""The maximum of a new queue, until it is configured."""

BUNDLE_BITS: Final = 12
"""The number of counters of the messages in bundles: counter ``n`` counts 2^n messages for each version."""

LARGEST_BUNDLED: Final = 1024
"""Maximum bytes of a message in a bundle."""

_SUFFIX: Final = 6
"""The length of a message's counter, which ends its id."""

ID_DIGITS: Final = CLIENT_DIGITS + _SUFFIX
"""The length of the id of a message in a bundle: the nonce and a counter."""

_VERSION: Final = 1
_HEAD: Final = Struct(f">4sBH{CLIENT_DIGITS}s")
_ENTRY: Final = Struct(">6sI")
_ID: Final = f"[0-9A-Za-z]{{{ID_DIGITS}}}"
_NAME: Final = re.compile(rf"bundle-m([0-9]{{1,3}})-(?:{BATCH_FIELD})?s({_ID})-l({_ID})-i({_ID})-([0-9]{{10}})")
_PREFIX: Final = "bundle-"
_WHAT: Final = "the record of a bundle"


class BundleName(NamedTuple):
    """The parsed name of a bundle."""

    size: int
    """The number of its messages."""
    first: str
    """The id of its first message."""
    last: str
    """The id of its last message."""
    id: str
    """The bundle's own id."""
    digits: str
    """Its sequence number, as ten digits."""

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse a name; return None if it is not a bundle's."""
        match = _NAME.fullmatch(text)
        if match is None:
            return None
        count, first, last, own, digits = match.groups()
        return cls(int(count), first, last, own, digits) if 1 <= int(count) <= MOST_BUNDLED else None

    def may_hold(self, message_id: str) -> bool:
        """Whether the message may be in the bundle; the table of ids decides."""
        return self.first <= message_id <= self.last


class BundledMessage(NamedTuple):
    """One message of a bundle."""

    id: str
    data: bytes
    """The bytes that it would have as an item."""
    position: int = 0
    """Its position in the bundle, from 0."""


#: Equal to the class itself, but implemented in C.
_new_message: Callable[[tuple[str, bytes, int]], BundledMessage] = partial(
    tuple.__new__,  # pyright: ignore[reportUnknownMemberType]
    BundledMessage,
)


def is_bundle(name: str) -> bool:
    """Whether a name begins as a bundle's does."""
    return name.startswith(_PREFIX)


def is_bundle_at(path: str) -> bool:
    """Whether the name at the end of a path or place begins as a bundle's does."""
    return "/bundle-" in path


def messages_in(name: str) -> int:
    """Return the number of messages in the item with this name: one, unless it is a bundle."""
    if not name.startswith(_PREFIX):
        return 1
    bundle = BundleName.parse(name)
    return 1 if bundle is None else bundle.size


def bundle_prefix(id: str, ids: Sequence[str], batch: str = "") -> str:
    """Return the name to create a sequential bundle under, from its own id and those of its messages.

    ``batch`` is the `batch_field` of its messages.
    """
    return f"bundle-m{len(ids)}-{batch}s{ids[0]}-l{ids[-1]}-i{id}-"


def encode_bundle(ids: Sequence[str], bodies: Sequence[bytes]) -> bytes:
    """Return the data of a bundle, from the id of each message and the bytes that it would have as an item.

    The ids must begin with the same nonce, and ascend.
    """
    text = "".join(ids).encode()
    entries: list[bytes | int] = [0] * (2 * len(bodies))
    entries[::2] = [text[end - _SUFFIX : end] for end in range(ID_DIGITS, len(text) + 1, ID_DIGITS)]
    entries[1::2] = map(len, bodies)
    head = _HEAD.pack(BUNDLE_MAGIC, _VERSION, len(bodies), text[:CLIENT_DIGITS])
    return b"".join([head, _table_of(len(bodies)).pack(*entries), *bodies])


class BundleTable(NamedTuple):
    """The data of a bundle, divided by its table, without an object for each message."""

    data: bytes
    start: int
    """The position of the first message in the data."""
    nonce: bytes
    """The beginning of each id."""
    suffixes: tuple[bytes, ...]
    """The rest of each id."""
    lengths: tuple[int, ...]
    """The length of each message, bytes."""

    def part(self, first: int, last: int) -> BundleTable:
        """Return the messages from ``first`` to before ``last``."""
        start = self.start + sum(self.lengths[:first])
        return self._replace(start=start, suffixes=self.suffixes[first:last], lengths=self.lengths[first:last])

    @property
    def ids(self) -> bytes:
        """All ids, one after the other; each has `ID_DIGITS` bytes."""
        return self.nonce + self.nonce.join(self.suffixes)

    def messages(self) -> Iterator[tuple[str, bytes, int]]:
        """Return the id, the bytes and the position of each message."""
        ids = self.ids.decode()
        starts = accumulate(self.lengths, initial=self.start)
        bodies = [self.data[start:end] for start, end in pairwise(starts)]
        return zip([ids[at : at + ID_DIGITS] for at in range(0, len(ids), ID_DIGITS)], bodies, count(), strict=False)

    @property
    def bodies(self) -> memoryview:
        """The bytes of all messages, one after the other."""
        return memoryview(self.data)[self.start : self.start + sum(self.lengths)]


@cache
def _table_of(count: int) -> Struct:
    """Return the format of the table of this many messages."""
    return Struct(">" + "6sI" * count)


def read_table(data: bytes) -> BundleTable:
    """Divide the data of a bundle.

    Raises:
        MalformedError: the data is not a bundle of this version, or its table does not match its size.
    """
    if len(data) < _HEAD.size:
        raise MalformedError(f"a bundle of {len(data)} bytes has no table")
    magic, version, count, nonce = _HEAD.unpack_from(data)
    start = _HEAD.size + count * _ENTRY.size
    if magic != BUNDLE_MAGIC or version != _VERSION or not 1 <= count <= MOST_BUNDLED or start > len(data):
        raise MalformedError(f"these {len(data)} bytes are not a bundle of version {_VERSION}: {data[:8]!r}")
    entries = _table_of(count).unpack_from(data, _HEAD.size)
    table = BundleTable(data, start, nonce, entries[::2], entries[1::2])
    end = start + sum(table.lengths)
    if end != len(data):
        raise MalformedError(f"a bundle of {len(data)} bytes has a table of {end}")
    if not table.ids.isalnum() or not all(map(lt, table.suffixes, table.suffixes[1:])):
        raise MalformedError("the ids of a bundle are not letters and digits, or do not ascend")
    return table


def decode_bundle(data: bytes) -> list[BundledMessage]:
    """Return the messages of a bundle. Raises: MalformedError: as `read_table`."""
    return list(map(_new_message, read_table(data).messages()))


def single_of(header: Header, payload: bytes, created: int) -> bytes:
    """Return the bytes of a message that leaves its bundle, and keeps the time of its put (ms)."""
    return encode(payload, replace(header, enqueued_at=created) if header.enqueued_at is None else header)


@dataclass(frozen=True, slots=True)
class BundleRecord:
    """The state of a claimed bundle."""

    claim: str
    """The id of the claim."""
    done: int = 0
    """The messages that have left the bundle: bit n is message n."""
    attempts: Mapping[int, int] = field(default_factory=dict[int, int])
    """The counted attempts at messages, by position."""
    errors: Mapping[int, str] = field(default_factory=dict[int, str])
    """The errors of the last attempts that failed, by position, each cut to `ERROR_LIMIT` characters."""

    def encode(self) -> bytes:
        """Return the bytes to store; without the errors, if they would make the record too long."""
        fields: dict[str, JsonValue] = {"claim": self.claim}
        if self.done:
            fields["done"] = f"{self.done:x}"
        if self.attempts:
            fields["attempts"] = {str(position): number for position, number in self.attempts.items()}
        if not self.errors:
            return write_object(fields)
        errors: dict[str, JsonValue] = {
            str(position): storable_text(text[:ERROR_LIMIT]) for position, text in self.errors.items()
        }
        data = write_object({**fields, "errors": errors})
        return data if len(data) <= OBJECT_LIMIT else write_object(fields)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a record.

        Raises:
            MalformedError: the data is not the record of a bundle.
        """
        fields = read_object(data, _WHAT)
        claim, done = pop_text(fields, "claim", _WHAT), pop_text(fields, "done", _WHAT) or "0"
        attempts = fields.pop("attempts", {})
        if claim is None or not re.fullmatch(r"[0-9a-f]{1,16}", done) or not isinstance(attempts, dict):
            raise MalformedError(f"{_WHAT} lacks its claim, or has no valid bit set")
        counted: dict[int, int] = {}
        for position, number in attempts.items():
            if (
                not re.fullmatch(r"[0-9]{1,2}", position)
                or type(number) is not int
                or not 0 <= number <= LARGEST_NUMBER
            ):
                raise MalformedError(f"{_WHAT} has counts of attempts that are not numbers")
            counted[int(position)] = number
        errors = fields.pop("errors", None)
        texts = errors.items() if isinstance(errors, dict) else ()
        failed = {int(at): text for at, text in texts if at in attempts and isinstance(text, str)}
        return cls(claim, int(done, 16), counted, failed)
