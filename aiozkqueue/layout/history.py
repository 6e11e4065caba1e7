"""The stored history of ended messages: ``history/<hour>/<ms>-<id>``.

An hour is named after its start, ``2026-03-01T17`` in UTC. A record is named after the time of the end (milliseconds
since 1970, ZooKeeper's time) and the message's id. So names sort by time, and hold all that the clean-up needs. A
record is one JSON object:
``{"outcome":"finished","put":<ms>,"claimed":<ms>,"attempts":<n>,"client":"…","host":"…","name":"…","key":"…",
"group":"…","reason":"…","pid":<n>}``. All fields except the first two are optional; ``name`` is that of the session. If
the payload is kept, the object is the header of an envelope like an item's (see `envelope`), with the message's
``headers`` added.

``history/.pins/<name>`` holds an hour: a retention hold. The clean-up keeps all records from that hour on while it
exists.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Self

from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.moments import moment_at

from .envelope import MAGIC, frame, split
from .errors import MalformedError
from .fields import (
    LARGEST_NUMBER,
    OBJECT_LIMIT,
    check_moment,
    no_fields,
    pop_number,
    pop_text,
    pop_texts,
    read_object,
    storable_text,
    unknown_fields,
    write_object,
)
from .lanes import HOUR
from .paths import parse_due
from .policy import positive_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import JsonValue

    from .policy import Seconds

MOST_RECORDS: Final = 10_000_000
"""The maximum number of records that a history may be configured to keep."""

_HOUR: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}")
_WHAT: Final = "a record of history"
_WEEK: Final = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The settings of a queue's history, its records of ended messages.

    Args:
        lifetime: the seconds (or a timedelta) for which a record is kept, up to 10**9; default: a week.
        most: the maximum number of records to keep, the newest ones; default: 100,000. The clean-up enforces both
            limits at its interval, so the history may exceed them in between.
        payload: whether to keep the payload and the headers too. A dead letter keeps its own, and so does a message
            that was moved or reassigned.

    Raises:
        InvalidOptionError: a setting is out of range.
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
    """The ways in which a message can end."""

    FINISHED = "finished"
    """Consumed by a commit."""
    DEAD = "dead-lettered"
    FAILED = "failed"
    """It used up its attempts, and the policy drops such messages."""
    EXPIRED = "expired"
    """Its time to live had passed."""
    CANCELLED = "cancelled"
    REMOVED = "removed"
    """An operator purged it, or moved it to another queue."""
    COLLAPSED = "collapsed"
    """A newer message of its key was delivered in its place."""
    REAPED = "reaped"
    """It was reassigned as another message, because its node was gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRecord:
    """The record of one ended message."""

    id: str
    ended: int
    """The time of the end, in milliseconds since 1970 in ZooKeeper's time."""
    outcome: End
    put: int
    """The time of the put, in the same unit."""
    claimed: int | None = None
    """The time when the session that ended it had claimed it; None: it was not claimed."""
    attempts: int = 0
    """The number of counted attempts. `AtLeastOnce` does not count attempts that the death of a process cut short."""
    client: str = ""
    """The id of the client that ended it."""
    host: str = ""
    pid: int = 0
    name: str = ""
    """The name of the session that ended it (``connect(name=...)``), or empty."""
    key: str | None = None
    group: str | None = None
    reason: str = ""
    """The reason of the failure; at most 4 KiB of UTF-8, longer reasons are cut."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    payload: bytes | None = None
    """The payload; None if the history does not keep it, or if the dead letter does."""
    unknown: Mapping[str, JsonValue] = field(default_factory=no_fields, repr=False)
    """Fields of other versions."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", storable_text(self.reason))

    @property
    def put_at(self) -> datetime:
        """The time of the put, in ZooKeeper's time."""
        return moment_at(self.put)

    @property
    def claimed_at(self) -> datetime | None:
        """The time when the session that ended it had claimed it."""
        return None if self.claimed is None else moment_at(self.claimed)

    @property
    def ended_at(self) -> datetime:
        """The time of the end, in ZooKeeper's time."""
        return moment_at(self.ended)

    @property
    def place(self) -> str:
        """The record's place, relative to the history."""
        return f"{hour_of(self.ended)}/{self.ended:013d}-{self.id}"

    def encode(self) -> bytes:
        """Return the bytes to store."""
        fields: dict[str, JsonValue] = {**self.unknown, "outcome": self.outcome.value, "put": self.put}
        if self.claimed is not None:
            fields["claimed"] = self.claimed
        if self.attempts:
            fields["attempts"] = self.attempts
        texts = {
            "client": self.client,
            "host": self.host,
            "name": self.name,
            "key": self.key,
            "group": self.group,
            "reason": self.reason,
        }
        fields.update({name: storable_text(text) for name, text in texts.items() if text})
        if self.pid:
            fields["pid"] = self.pid
        if self.payload is None:
            return write_object(fields)
        data = write_object({**fields, "headers": dict(self.headers)}) if self.headers else write_object(fields)
        if len(data) > OBJECT_LIMIT:  # a record that can be decoded matters more than the headers
            data = write_object(fields)
        return frame(data, self.payload)

    @classmethod
    def decode(cls, name: str, data: bytes) -> Self:
        """Decode a record.

        Raises:
            MalformedError: the name or the data is not a record's.
        """
        moment = parse_record(name)
        if moment is None:
            raise MalformedError(f"{name[:80]!r} does not name a record of history")
        payload: bytes | None = None
        if data[: len(MAGIC)] == MAGIC:
            data, payload = split(data)
        fields = read_object(data, _WHAT)
        outcome = pop_text(fields, "outcome", _WHAT)
        put = pop_number(fields, "put", _WHAT)
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
            name=pop_text(fields, "name", _WHAT) or "",
            pid=pop_number(fields, "pid", _WHAT, most=LARGEST_NUMBER) or 0,
            key=pop_text(fields, "key", _WHAT),
            group=pop_text(fields, "group", _WHAT),
            reason=pop_text(fields, "reason", _WHAT) or "",
            headers=pop_texts(fields, "headers", _WHAT),
            payload=payload,
            unknown=unknown_fields(fields, _WHAT),
        )


_ENDS: Final = {end.value: end for end in End}


def hour_of(ms: int) -> str:
    """Return the name of the hour that a time (milliseconds since 1970) belongs to.

    Raises:
        MalformedError: the moment is not between 1970 and the end of the year 9999.
    """
    return f"{moment_at(check_moment(ms)):%Y-%m-%dT%H}"


def parse_hour(name: str) -> int | None:
    """Return the start of an hour in milliseconds since 1970, given its name; None if the name is not an hour's."""
    if _HOUR.fullmatch(name) is None:
        return None
    try:
        return int(datetime.strptime(name, "%Y-%m-%dT%H").replace(tzinfo=UTC).timestamp()) * 1000
    except ValueError:
        return None


def hour_end(begin: int) -> int:
    """Return the end of the hour that begins at ``begin``."""
    return begin + HOUR


def parse_record(name: str) -> tuple[int, str] | None:
    """Return the time and the id in a record's name; None if the name is not a record's."""
    return parse_due(name)  # both names have the same form
