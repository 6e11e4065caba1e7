"""Lock records and attempt records: small JSON objects next to the items. And the holders of unique keys.

A lock: ``{"claim":"…","owner":"…","end":<ms>,"leased":true}``. ``end`` appears only in a timed lock, and ``leased``
only if the timed lock is a lease. Attempts: ``{"attempts":<n>,"claim":"…","error":"…","due":<ms>,"retries":<n>}``. All
fields except the first are optional.

The holder of a unique key: the id of the message, and, after a space, its time of expiry in ms if it has one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from .errors import MalformedError
from .fields import (
    LARGEST_NUMBER,
    OBJECT_LIMIT,
    no_fields,
    pop_number,
    pop_text,
    read_object,
    storable_text,
    unknown_fields,
    write_object,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydantic import JsonValue

_LOCK: Final = "a lock"
#: The time of expiry of a unique key's holder has fewer digits.
_MOST_DIGITS: Final = 20
_LEASED: Final = ',"leased":true'
_ATTEMPTS: Final = "a record of attempts"


@dataclass(frozen=True, slots=True)
class LockRecord:
    """The holder of an item."""

    claim: str
    """The id of the claim; empty in another program's lock."""
    owner: str
    """The client that created the lock."""
    end: int | None = None
    """The end of a timed lock, in milliseconds since 1970; None: the lock ends with its ZooKeeper session."""
    leased: bool = False
    """Whether a holder handles the item until then; otherwise the timed lock delays the item's next attempt."""

    def held(self, now: int) -> bool:
        """Whether a transaction, a delivery, or a lease that has not ended at ``now`` (ms) holds the item."""
        return self.end is None or (self.leased and self.end > now)

    def encode(self) -> bytes:
        """Return the bytes to store.

        Raises:
            ValueError: a text has lone surrogates.
        """
        # Letters and digits need no escapes in JSON, so the usual lock is written without the encoder.
        if self.claim.isalnum() and self.owner.isalnum():
            end = "" if self.end is None else f',"end":{self.end}{_LEASED if self.leased else ""}'
            return f'{{"claim":"{self.claim}","owner":"{self.owner}"{end}}}'.encode()
        fields: dict[str, JsonValue] = {"claim": self.claim, "owner": self.owner}
        if self.end is not None:
            fields["end"] = self.end
            if self.leased:
                fields["leased"] = True
        return write_object(fields)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a lock; never raises.

        Bytes of any other form, or no bytes, are a foreign lock, ``LockRecord("", "", None)``. It holds the item too,
        until its session ends or the lock is removed by force.
        """
        try:
            fields = read_object(data, _LOCK)
            claim = pop_text(fields, "claim", _LOCK)
            owner = pop_text(fields, "owner", _LOCK)
            end = pop_number(fields, "end", _LOCK)
        except MalformedError:
            return cls("", "", None)
        if not claim or owner is None:
            return cls("", "", None)
        return cls(claim, owner, end, end is not None and fields.get("leased") is True)


def lock_text(owner: str) -> Callable[[str], str]:
    """Return a function that writes the `LockRecord` of an ephemeral lock of ``owner``, given the id of the claim.

    Both consist of letters and digits. It is not a function of Python, because each batch of claims calls it.
    """
    return f'{{{{"claim":"{{}}","owner":"{owner}"}}}}'.format


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """The number of counted attempts at an item, and the result of the last one."""

    attempts: int
    claim: str = ""
    """The claim of the last attempt."""
    error: str | None = None
    """The error of the last attempt that ended with one, at most 4 KiB of UTF-8; longer texts are cut."""
    due: int | None = None
    """The time of the next attempt, in milliseconds since 1970."""
    retries: int = 0
    """The length of the schedule that a handler gave last, by which the policy allows more attempts; 0: none."""
    unknown: Mapping[str, JsonValue] = field(default_factory=no_fields)
    """Fields of other versions, kept when the record is rewritten."""

    def __post_init__(self) -> None:
        if self.error is not None:
            object.__setattr__(self, "error", storable_text(self.error))

    def encode(self) -> bytes:
        """Return the bytes to store.

        Raises:
            ValueError: the claim has lone surrogates.
        """
        fields: dict[str, JsonValue] = {"attempts": self.attempts}
        if self.claim:
            fields["claim"] = self.claim
        if self.error is not None:
            fields["error"] = self.error
        if self.due is not None:
            fields["due"] = self.due
        if self.retries:
            fields["retries"] = self.retries
        data = write_object({**self.unknown, **fields}) if self.unknown else write_object(fields)
        # A record that can be decoded matters more than the fields of other versions.
        return data if len(data) <= OBJECT_LIMIT else write_object(fields)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode an attempt record.

        Raises:
            MalformedError: the data is not an attempt record.
        """
        fields = read_object(data, _ATTEMPTS)
        attempts = pop_number(fields, "attempts", _ATTEMPTS, most=LARGEST_NUMBER)
        if attempts is None:
            raise MalformedError(f"{_ATTEMPTS} lacks their number")
        return cls(
            attempts,
            pop_text(fields, "claim", _ATTEMPTS) or "",
            pop_text(fields, "error", _ATTEMPTS),
            pop_number(fields, "due", _ATTEMPTS),
            pop_number(fields, "retries", _ATTEMPTS, most=LARGEST_NUMBER) or 0,
            unknown_fields(fields, _ATTEMPTS),
        )


class KeyHolder(NamedTuple):
    """The message that holds a unique key."""

    id: str
    expires: int | None = None
    """Its time of expiry, in milliseconds since 1970; None: it never expires."""

    def encode(self) -> bytes:
        """Return the bytes to store."""
        return self.id.encode() if self.expires is None else b"%s %d" % (self.id.encode(), self.expires)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a holder; never raises."""
        message_id, _, end = data.decode("utf-8", "replace").partition(" ")
        return cls(message_id, int(end) if end.isascii() and end.isdigit() and len(end) < _MOST_DIGITS else None)
