"""The bytes of an item: the bare payload, or an envelope with a header and the payload.

A payload without a header is stored unchanged, and is readable in zkCli. With a header, or if the payload begins with
the magic bytes, the znode holds::

    f5 7a 71 31 | header length, 4 bytes, most significant first | header, a JSON object in UTF-8 | payload

UTF-8 never begins with ``f5``, so no text is mistaken for an envelope. The header's fields are all optional:
``headers`` (an object of strings), ``key``, ``group``, ``priority`` (integer), ``enqueued_at`` (milliseconds since
1970), ``dead`` (``reason``, ``attempts``, ``at``), ``filters`` (an object of strings and integers). Unknown fields are
kept when the item is rewritten.

A header without ``dead`` and ``enqueued_at`` takes up to 32 KiB, and readers accept 64 KiB. So every message that can
be read can be rewritten with its time of put, and can become a dead letter.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import InvalidOptionError

from .errors import MalformedError
from .fields import (
    LARGEST_NUMBER,
    LAST_MOMENT,
    OBJECT_LIMIT,
    is_text,
    no_fields,
    pop_number,
    pop_text,
    pop_texts,
    read_object,
    storable_text,
    unknown_fields,
    write_object,
)
from .filters import TagValue, usable_tags

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import JsonValue

    from .filters import Tags

MAGIC: Final = b"\xf5zq1"
"""The first bytes of an envelope."""

HEADER_LIMIT: Final = 32 * 1024
"""Maximum bytes of a put message's header as JSON."""

_STAMP: Final = len('"enqueued_at":,') + len(str(LAST_MOMENT))
"""Maximum bytes that a rewritten message's header takes beyond `HEADER_LIMIT`."""

_GROWTH: Final = 4
"""By how much JSON may grow when it is read and written again: ``1e15`` becomes ``1000000000000000.0``."""

_START: Final = len(MAGIC) + 4
_WHAT: Final = "the header of an item"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The reason why a message is a dead letter."""

    reason: str
    """At most 4 KiB of UTF-8; longer reasons are cut."""
    attempts: int
    at: int
    """The time of dead-lettering, in milliseconds since 1970 in ZooKeeper's time."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", storable_text(self.reason))


@dataclass(frozen=True, slots=True)
class Header:
    """The data stored with a payload."""

    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    key: str | None = None
    group: str | None = None
    priority: int = 0
    enqueued_at: int | None = None
    """The time of the first put, in milliseconds since 1970; only in items that have been rewritten."""
    dead: DeadLetter | None = None
    tags: Tags = field(default_factory=dict[str, TagValue])
    """The tags that consumers may filter by."""
    unknown: Mapping[str, JsonValue] = field(default_factory=no_fields)
    """Fields of other versions, kept when the item is rewritten."""

    def put_at(self, created: int) -> int:
        """Return the time of the put, ms: the stored one, or else the time when its item was ``created``."""
        return created if self.enqueued_at is None else self.enqueued_at


EMPTY_HEADER: Final = Header(headers=MappingProxyType({}), tags=MappingProxyType({}), unknown=MappingProxyType({}))
"""The header of every bare payload, shared."""


def encode(payload: bytes, header: Header | None = None) -> bytes:
    """Return the bytes to store.

    Raises:
        InvalidOptionError: the header is larger than 32 KiB without its time of put (64 KiB with a dead letter's
            reason), or has fields of wrong types, or text that UTF-8 cannot encode.
    """
    fields = None if header is None or header is EMPTY_HEADER else _fields(header)
    if not fields and payload[:4] != MAGIC:
        return payload
    return frame(_header_text(fields or {}), payload)


def encoded_size(payload: bytes, header: Header | None = None) -> int:
    """Return the size of the result of `encode`.

    Raises:
        InvalidOptionError: as `encode`.
    """
    fields = {} if header is None or header is EMPTY_HEADER else _fields(header)
    if not fields and payload[: len(MAGIC)] != MAGIC:
        return len(payload)
    return _START + len(_header_text(fields)) + len(payload)


def decode(data: bytes) -> tuple[Header, bytes]:
    """Return the header and the payload of stored bytes; a bare payload is returned unchanged.

    Raises:
        MalformedError: the bytes begin like an envelope but are not a valid one, or `encode` refuses the header.
    """
    if data[:4] != MAGIC:
        return EMPTY_HEADER, data
    text, payload = split(data)
    header = _header(read_object(text, _WHAT))
    if len(text) * _GROWTH > HEADER_LIMIT:
        _check_writable(header)
    return header, payload


def frame(header: bytes, payload: bytes) -> bytes:
    """Return an envelope with this JSON as its header."""
    return MAGIC + len(header).to_bytes(4, "big") + header + payload


def split(envelope: bytes) -> tuple[bytes, bytes]:
    """Return the JSON and the payload of bytes that begin with `MAGIC`.

    Raises:
        MalformedError: they end before the header does.
    """
    length = int.from_bytes(envelope[len(MAGIC) : _START], "big")
    end = _START + length
    if len(envelope) < _START or end > len(envelope):
        raise MalformedError(f"an envelope of {len(envelope)} bytes cannot hold a header of {length}")
    return envelope[_START:end], envelope[end:]


def _check_writable(header: Header) -> None:
    """Check that a message with this header can be rewritten. Raises: MalformedError: the header is too large."""
    try:
        encoded_size(b"", replace(header, dead=None))
    except InvalidOptionError as error:
        raise MalformedError(f"{_WHAT} cannot be written again: {error}") from error


def _header_text(fields: dict[str, JsonValue]) -> bytes:
    try:
        text = write_object(fields)
    except (ValueError, TypeError) as error:
        raise InvalidOptionError(f"headers, key and group must be text that UTF-8 can encode: {error}") from error
    limit = OBJECT_LIMIT if "dead" in fields else HEADER_LIMIT + _STAMP * ("enqueued_at" in fields)
    if len(text) > limit:
        raise InvalidOptionError(
            f"headers, key and group take {len(text)} bytes, more than {limit}: put large data into the payload"
        )
    return text


def _fields(header: Header) -> dict[str, JsonValue]:
    fields: dict[str, JsonValue] = {}
    if header.headers:
        fields["headers"] = {
            _text("headers: a name", name): text if is_text(text) else _text(f"headers[{name!r}]", text)
            for name, text in header.headers.items()
        }
    if header.key is not None:
        fields["key"] = _text("key", header.key)
    if header.group is not None:
        fields["group"] = _text("group", header.group)
    if header.priority:
        fields["priority"] = _priority(header.priority)
    if header.enqueued_at is not None:
        fields["enqueued_at"] = header.enqueued_at
    if header.dead is not None:
        dead = header.dead
        fields["dead"] = {"reason": dead.reason, "attempts": dead.attempts, "at": dead.at}
    if header.tags:
        fields["filters"] = dict(header.tags)
    if header.unknown:
        fields.update(header.unknown)
    return fields


def _header(fields: dict[str, JsonValue]) -> Header:
    dead = fields.pop("dead", None)
    tags = fields.pop("filters", None)
    return Header(
        headers=pop_texts(fields, "headers", _WHAT),
        key=pop_text(fields, "key", _WHAT),
        group=pop_text(fields, "group", _WHAT),
        priority=pop_number(fields, "priority", _WHAT, -LARGEST_NUMBER, LARGEST_NUMBER) or 0,
        enqueued_at=pop_number(fields, "enqueued_at", _WHAT),
        dead=None if dead is None else _dead_letter(dead),
        tags={} if tags is None else usable_tags(tags),
        unknown=unknown_fields(fields, _WHAT),
    )


def _dead_letter(value: JsonValue) -> DeadLetter:
    what = f"{_WHAT}: 'dead'"
    if not isinstance(value, dict):
        raise MalformedError(f"{what} is not an object")
    reason = pop_text(value, "reason", what)
    attempts = pop_number(value, "attempts", what, most=LARGEST_NUMBER)
    at = pop_number(value, "at", what)
    if reason is None or attempts is None or at is None:
        raise MalformedError(f"{what} lacks its reason, attempts or time")
    return DeadLetter(reason, attempts, at)


def _text(option: str, value: str) -> str:
    if not is_text(value):
        raise InvalidOptionError(f"{option}: {value!r}: give a str that UTF-8 can encode")
    return value


def _priority(value: int) -> int:
    if type(value) is not int or abs(value) > LARGEST_NUMBER:
        raise InvalidOptionError(
            f"priority={value!r}: it must be an integer from {-LARGEST_NUMBER} to {LARGEST_NUMBER}"
        )
    return value
