"""The options of a put, and their checks before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Literal, TypedDict, cast

from aiozkqueue.arguments import Seconds, is_choice, required_seconds
from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.layout import (
    FIRST_PRIORITY,
    LAST_MOMENT,
    LAST_PRIORITY,
    Header,
    check_tags,
    encode_tags,
    item_prefix,
    key_hash,
    lifetime,
    tags_digest,
)
from aiozkqueue.moments import milliseconds_at

if TYPE_CHECKING:
    from typing import Any

#: A key is stored in the item's envelope; longer values belong in the payload.
MAX_KEY = 1024


class PutOptions(TypedDict, total=False):
    """The options of a put. Each has a default; they may be combined unless they contradict each other.

    An option out of range, or a contradiction, raises `InvalidOptionError` before anything is sent.
    """

    priority: int
    """From -128, the most urgent, to 127; 0 by default."""
    delay: Seconds | None
    """Seconds before the message can be delivered, counted from this call; None: at once."""
    at: datetime | None
    """The earliest time of delivery, with a time zone, instead of ``delay``."""
    key: str | None
    """The key for ``unique``, ``collapse``, `Queue.cancel` and `Queue.update`; up to 1,024 bytes of UTF-8."""
    group: str | None
    """Messages of one group are delivered one at a time, in the order of their puts."""
    headers: Mapping[str, str] | None
    """Text values stored with the payload."""
    ttl: Seconds | None
    """Seconds that it may wait to be taken once it is due; ``math.inf``: forever; None: the queue's default."""
    unique: Literal[True, False, "raise", "ignore"]
    """Put the message only if no message with this ``key`` (without a key: with this payload) is waiting or being
    handled. Otherwise raise `DuplicateKeyError` (True, ``"raise"``), or return the id of the one that existed during
    the call (``"ignore"``).
    """
    tags: Mapping[str, str | int] | None
    """Text or integers by name, which consumers filter by."""


#: Options by which a message leaves the order of its group: they contradict ``group=``.
_OUT_OF_ORDER: dict[str, object] = {"priority": 0, "delay": None, "at": None}
_OPTIONS = frozenset({"priority", "delay", "at", "key", "group", "headers", "ttl", "unique", "tags"})


def reason_text(value: object) -> str:
    """Return a reason for a dead letter. Raises: InvalidOptionError."""
    if not isinstance(value, str):
        msg = f"reason takes a str, not {type(value).__name__}"
        raise InvalidOptionError(msg)
    return value


def put_header(queue: str, options: Mapping[str, Any]) -> Header | None:
    """Turn put options into the header to store; None if there is none.

    Raises:
        InvalidOptionError: an option is unknown, of the wrong type, too long, or not supported.
    """
    if not options:
        return None
    for option in options:
        if option not in _OPTIONS:
            msg = f"queue {queue!r}: unknown option {option!r}; the options are {', '.join(PutOptions.__annotations__)}"
            raise InvalidOptionError(msg)
    if (ttl := options.get("ttl")) is not None:
        lifetime(ttl)
    unique_mode(queue, options.get("unique"))
    key, headers = _key(queue, options.get("key")), headers_given(queue, options.get("headers"))
    group = _key(queue, options.get("group"), "group")
    priority = _priority(queue, options.get("priority", 0))
    schedule_of(queue, options)
    if group is not None:
        refuse_disorder(queue, f"group={group[:50]!r}", options)
    tags = check_tags(queue, options.get("tags"))
    if key is None and group is None and not headers and not priority and not tags:
        return None
    return Header(key=key, group=group, headers=headers, priority=priority, tags=tags)


def refuse_disorder(queue: str, ordered: str, options: Mapping[str, Any]) -> None:
    """Reject options that contradict the order of puts, which ``ordered`` requires. Raises: InvalidOptionError."""
    for option, neutral in _OUT_OF_ORDER.items():
        if options.get(option, neutral) != neutral:
            msg = (
                f"queue {queue!r}: {option}={options[option]!r} contradicts {ordered}: "
                "messages are delivered in the order of their puts; leave one of the two out"
            )
            raise InvalidOptionError(msg)


def schedule_of(queue: str, options: Mapping[str, Any]) -> tuple[float | None, int | None]:
    """Return the delay in seconds, or the due time in milliseconds of ZooKeeper's time; neither: at once.

    Raises:
        InvalidOptionError: both are given; the delay is not a finite number of seconds; the time has no zone, or is
            beyond the year 9999.
    """
    delay, at = options.get("delay"), options.get("at")
    if delay is None and at is None:
        return None, None
    if at is None:
        wait = required_seconds(delay, f"queue {queue!r}: delay")
        return wait or None, None
    if delay is not None:
        msg = f"queue {queue!r}: delay and at cannot be combined; give one of them"
        raise InvalidOptionError(msg)
    if not isinstance(at, datetime) or at.utcoffset() is None:
        msg = (
            f"queue {queue!r}: at={at!r}: give a datetime with a time zone, such as datetime.now(UTC) + timedelta(...)"
        )
        raise InvalidOptionError(msg)
    due = milliseconds_at(at)
    if due > LAST_MOMENT:
        msg = f"queue {queue!r}: at={at!r} is beyond the year 9999"
        raise InvalidOptionError(msg)
    return None, max(0, due)


def unique_mode(queue: str, value: object) -> Literal["raise", "ignore"] | None:
    """Return how a put with a taken key is handled; None: it need not be unique. Raises: InvalidOptionError."""
    if value is None or value is False:
        return None
    if value is True or is_choice(value, "raise"):
        return "raise"
    if is_choice(value, "ignore"):
        return "ignore"
    msg = f'queue {queue!r}: unique={value!r}: give True (or "raise"), "ignore", or False'
    raise InvalidOptionError(msg)


def prefix_of(message_id: str, header: Header | None, *, unique: str | None = None) -> str:
    """Return the item's name up to the sequence number; ``unique`` is the hash of a key that must be unique."""
    if header is None:
        return item_prefix(message_id, key=unique, unique=unique is not None)
    key = unique or (None if header.key is None else key_hash(header.key))
    group = None if header.group is None else key_hash(header.group)
    tags = tags_digest(encode_tags(header.tags)) if header.tags else None
    return item_prefix(message_id, group=group, key=key, unique=unique is not None, tags=tags)


def _priority(queue: str, priority: object) -> int:
    if type(priority) is not int or not FIRST_PRIORITY <= priority <= LAST_PRIORITY:
        msg = (
            f"queue {queue!r}: priority={priority!r}: give an integer from {FIRST_PRIORITY}, the most urgent, "
            f"to {LAST_PRIORITY}"
        )
        raise InvalidOptionError(msg)
    return priority


def _key(queue: str, key: object, option: str = "key") -> str | None:
    if key is None:
        return None
    if not isinstance(key, str) or not key or len(key.encode("utf-8", "replace")) > MAX_KEY:
        msg = f"queue {queue!r}: {option}={repr(key)[:50]}: give a non-empty str of at most {MAX_KEY} bytes"
        raise InvalidOptionError(msg)
    return key


def headers_given(queue: str, headers: object) -> dict[str, str]:
    """Return a copy of the headers that a caller gave; the texts are not checked. Raises: InvalidOptionError."""
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        msg = f"queue {queue!r}: headers takes a mapping of str to str, not {type(headers).__name__}"
        raise InvalidOptionError(msg)
    return dict(cast("Mapping[str, str]", headers))
