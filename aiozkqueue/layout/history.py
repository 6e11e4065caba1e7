"""What is kept of messages that have come to their end: ``history/<hour>/<ms>-<id>``.

An hour is named by the moment it begins, ``2026-03-01T17`` in UTC, a record by the moment (milliseconds since 1970,
ZooKeeper's time) and the id of its message: names sort by time, and say all that clean-up needs. A record is one JSON
object: ``{"outcome":"finished","put":<ms>,"claimed":<ms>,"attempts":<n>,"client":"…","host":"…","pid":<n>,"key":"…",
"group":"…","reason":"…"}``, all but the first two optional. With the payload kept, it is the header of an envelope as
items have (see `envelope`), with the message's ``headers`` besides.

``history/.pins/<name>`` holds an hour: nothing of it, or later, is cleaned while the pin is there.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Self

from aiozkqueue.errors import InvalidOptionError

from .envelope import MAGIC
from .errors import MalformedError
from .fields import (
    LARGEST_NUMBER,
    LAST_MOMENT,
    OBJECT_LIMIT,
    no_fields,
    pop_number,
    pop_text,
    read_object,
    storable_text,
    unknown_fields,
    write_object,
)
from .policy import positive_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import JsonValue

    from .policy import Seconds

MOST_RECORDS: Final = 10_000_000
"""The most records that a history may be told to keep."""

_HOUR_MS: Final = 3_600_000
_HOUR: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}")
_RECORD: Final = re.compile(r"([0-9]{13,15})-([^/]{1,24})")
_START: Final = len(MAGIC) + 4
_WHAT: Final = "a record of history"
_WEEK: Final = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What a queue keeps of messages that have come to their end.

    Args:
        lifetime: seconds (or a timedelta) for which a record is kept, up to 10**9; a week unless told.
        most: so many records are kept at the most, the oldest go first; 100,000 unless told. Both are seen to by
            clean-up, at its interval: what has come since the last one is beyond them.
        payload: whether the payload and the headers are kept too. A dead letter keeps its own.

    Raises:
        InvalidOptionError: one is out of its range.
    """

    lifetime: Seconds = _WEEK
    most: int = 100_000
    payload: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "lifetime", positive_seconds("lifetime", self.lifetime))
        if type(self.most) is not int or not 1 <= self.most <= MOST_RECORDS:
            raise InvalidOptionError(f"most={self.most!r}: it must be an integer from 1 to {MOST_RECORDS}")
        if type(self.payload) is not bool:
            raise InvalidOptionError(f"payload={self.payload!r}: it must be True or False")

    @property
    def seconds(self) -> float:
        """The lifetime in seconds."""
        return self.lifetime.total_seconds() if isinstance(self.lifetime, timedelta) else float(self.lifetime)


class End(enum.Enum):
    """How a message came to its end."""

    FINISHED = "finished"
    """Consumed by a commit."""
    DEAD = "dead-lettered"
    FAILED = "failed"
    """It used up its attempts, and the policy drops such."""
    EXPIRED = "expired"
    """Its time to live was over."""
    CANCELLED = "cancelled"
    REMOVED = "removed"
    """By an operator: purged."""
    COLLAPSED = "collapsed"
    """A newer message of its key was delivered in its place."""
    REAPED = "reaped"
    """Handed on as another message, since its owner was gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRecord:
    """One message that has come to its end."""

    id: str
    ended: int
    """When, in milliseconds since 1970 in ZooKeeper's time."""
    outcome: End
    put: int
    """When it was put, alike."""
    claimed: int | None = None
    """When whoever ended it had claimed it; None: nobody held it."""
    attempts: int = 0
    """How many hand-overs had been counted; `AtLeastOnce` counts none that the death of its process cut short."""
    client: str = ""
    """The session that ended it."""
    host: str = ""
    pid: int = 0
    key: str | None = None
    group: str | None = None
    reason: str = ""
    """Why it failed; at most 4 KiB of UTF-8, longer ones are cut."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    payload: bytes | None = None
    """None when the history does not keep it, or the dead letter does."""
    unknown: Mapping[str, JsonValue] = field(default_factory=no_fields, repr=False)
    """Fields of other versions."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", storable_text(self.reason))

    @property
    def put_at(self) -> datetime:
        """When it was put, in ZooKeeper's time."""
        return datetime.fromtimestamp(self.put / 1000, UTC)

    @property
    def claimed_at(self) -> datetime | None:
        """When whoever ended it had claimed it."""
        return None if self.claimed is None else datetime.fromtimestamp(self.claimed / 1000, UTC)

    @property
    def ended_at(self) -> datetime:
        """When it ended, in ZooKeeper's time."""
        return datetime.fromtimestamp(self.ended / 1000, UTC)

    @property
    def place(self) -> str:
        """Where it lies, relative to the history."""
        return f"{hour_of(self.ended)}/{self.ended:013d}-{self.id}"

    def encode(self) -> bytes:
        """The bytes to store."""
        fields: dict[str, JsonValue] = {**self.unknown, "outcome": self.outcome.value, "put": self.put}
        if self.claimed is not None:
            fields["claimed"] = self.claimed
        if self.attempts:
            fields["attempts"] = self.attempts
        texts = {"client": self.client, "host": self.host, "key": self.key, "group": self.group, "reason": self.reason}
        fields.update({name: storable_text(text) for name, text in texts.items() if text})
        if self.pid:
            fields["pid"] = self.pid
        if self.payload is None:
            return write_object(fields)
        data = write_object({**fields, "headers": dict(self.headers)}) if self.headers else write_object(fields)
        if len(data) > OBJECT_LIMIT:  # what can be read again goes before what others may want to know
            data = write_object(fields)
        return MAGIC + len(data).to_bytes(4, "big") + data + self.payload

    @classmethod
    def decode(cls, name: str, data: bytes) -> Self:
        """Read a record.

        Raises:
            MalformedError: it is none.
        """
        moment = parse_record(name)
        if moment is None:
            raise MalformedError(f"{name[:80]!r} does not name a record of history")
        payload: bytes | None = None
        if data[: len(MAGIC)] == MAGIC:
            end = _START + int.from_bytes(data[len(MAGIC) : _START], "big")
            if len(data) < _START or end > len(data):
                raise MalformedError(f"{_WHAT}: {len(data)} bytes cannot hold its header")
            data, payload = data[_START:end], data[end:]
        fields = read_object(data, _WHAT)
        outcome = pop_text(fields, "outcome", _WHAT)
        put = pop_number(fields, "put", _WHAT)
        headers = fields.pop("headers", None)
        if outcome not in _ENDS or put is None:
            raise MalformedError(f"{_WHAT} lacks its outcome, or the time it was put")
        return cls(
            id=moment[1],
            ended=moment[0],
            outcome=_ENDS[outcome],
            put=put,
            claimed=pop_number(fields, "claimed", _WHAT),
            attempts=pop_number(fields, "attempts", _WHAT, most=LARGEST_NUMBER) or 0,
            client=pop_text(fields, "client", _WHAT) or "",
            host=pop_text(fields, "host", _WHAT) or "",
            pid=pop_number(fields, "pid", _WHAT) or 0,
            key=pop_text(fields, "key", _WHAT),
            group=pop_text(fields, "group", _WHAT),
            reason=pop_text(fields, "reason", _WHAT) or "",
            headers=_texts(headers),
            payload=payload,
            unknown=unknown_fields(fields, _WHAT),
        )


_ENDS: Final = {end.value: end for end in End}


def hour_of(ms: int) -> str:
    """The hour that a moment (milliseconds since 1970) belongs to.

    Raises:
        MalformedError: the moment is not between 1970 and the end of the year 9999.
    """
    if not 0 <= ms <= LAST_MOMENT:
        raise MalformedError(f"{ms} is not a moment between 1970 and 9999 in milliseconds")
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%dT%H}"


def parse_hour(name: str) -> int | None:
    """When an hour begins, in milliseconds since 1970; None when it names none."""
    if _HOUR.fullmatch(name) is None:
        return None
    try:
        return int(datetime.strptime(name, "%Y-%m-%dT%H").replace(tzinfo=UTC).timestamp()) * 1000
    except ValueError:
        return None


def hour_end(begin: int) -> int:
    """When the hour that begins then ends."""
    return begin + _HOUR_MS


def parse_record(name: str) -> tuple[int, str] | None:
    """The moment and the id in a record's name; None when it names none."""
    match = _RECORD.fullmatch(name)
    return None if match is None else (min(int(match[1]), LAST_MOMENT), match[2])


def _texts(value: JsonValue) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, dict):
        texts = {name: text for name, text in value.items() if isinstance(text, str)}
        if len(texts) == len(value):
            return texts
    raise MalformedError(f"{_WHAT}: 'headers' is not an object of texts")
