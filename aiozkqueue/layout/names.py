"""Names: of queues, and of items, which carry what a consumer must know to choose.

``item[-t<due ms>][-p<priority>][-e<end ms>][-g<group hash>][-k<key hash>][-u1][-b<batch>][-f<filter digest>]``, maybe
``-r<row>``, and then ``-i<id>-<sequence>``.

``p``, the priority + 128 in three digits, is there only with ``t``: others have theirs from their lane.
``e`` is when the message's life ends, ``u1`` says that its key is unique: a znode under ``keys/`` goes with it.
``r`` is what its writer knows it by, who looks whether it has been put; consumers need not.

Fields stand between dashes and start with their letter. The id is the last of them. A field of another letter, an empty
one, a second one of the same letter, or a due time that is no number is kept with the name and means nothing here.
The sequence is ZooKeeper's: ten digits, or a minus and nine or ten once the counter has overflowed.
An id has at most 24 characters and the whole name 1,024: a longer one is no item's.
A plain ``item-0000000042``, put by another program, has its digits as id; a negative one, ``n`` and its digits.
"""

from __future__ import annotations

import re
from base64 import b32encode
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Self

from aiozkqueue.errors import InvalidNameError, InvalidOptionError

from .errors import MalformedError
from .fields import LAST_MOMENT, is_text
from .lanes import FIRST_PRIORITY, LAST_PRIORITY, PRIORITY_DIGITS

_QUEUE: Final = re.compile(r"[A-Za-z0-9_:@-][A-Za-z0-9._:@-]{0,254}")

# Groups: the id when it is the first field (nearly always), the id behind other fields, the sequence.
# Whoever may put may choose names. An id of any length would make locks whose paths, all in one transaction when their
# session ends, are more than a server survives; names of any length would make requests that it does not take.
_ITEM: Final = re.compile(
    r"(?s:(?!.{1025}))item-(?:i([^-/]{1,24})-|(?:[^-/]*-)*?i([^-/]{1,24})-)?([0-9]{10}|-[0-9]{9,10})"
)
_match = _ITEM.fullmatch
_GROUP: Final = re.compile(r"item-(?:[^-/g][^-/]*-)*g([a-z2-7]{32})-(?:[^-/]*-)*i[^-/]{1,24}-[0-9]{10}")
_SCHEDULED: Final = re.compile(r"item-t[0-9]+-(?:p[0-9]{3}-)?")

_DUE_DIGITS: Final = 15
_KEY_BYTES: Final = 20
_LONGEST: Final = 1024
_SHOWN: Final = 80


def check_queue_name(name: str, what: str = "queue") -> None:
    """Refuse what cannot name a queue, or ``what`` else follows the same rule.

    Raises:
        InvalidNameError: not 1 to 255 of ``A-Z a-z 0-9 . _ : @ -``, or it starts with a dot.
    """
    if not is_text(name) or not _QUEUE.fullmatch(name):
        shown = name[:_SHOWN] if is_text(name) else name
        raise InvalidNameError(
            f"{shown!r} cannot name a {what}: take 1 to 255 of A-Z a-z 0-9 . _ : @ - and do not start with a dot"
        )


@dataclass(frozen=True, slots=True)
class ItemName:
    """What an item's name says; ``text`` is the whole of it."""

    text: str
    id: str
    sequence: int
    due: int | None = None
    """When it may be taken, in milliseconds since 1970 in ZooKeeper's time; None: at once."""
    group: str | None = None
    key: str | None = None
    batch: str | None = None
    filters: str | None = None
    expires: int | None = None
    """When its life ends, in milliseconds since 1970 in ZooKeeper's time; None: never."""
    unique: bool = False
    """Whether its key is unique among the messages that wait or are held."""
    priority: int = 0
    """Of one that is scheduled; others have theirs from their lane."""
    unknown: tuple[str, ...] = ()
    """Fields that mean nothing here, with their letter, in their order."""

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read the name of an item; None when it is none."""
        match = _match(text)
        if match is None:
            return None
        first, later, digits = match.groups()
        sequence = int(digits)
        if first is not None:
            return cls(text, first, sequence)
        if later is None:
            return cls(text, _foreign_id(digits), sequence)
        known: dict[str, str] = {}
        unknown: list[str] = []
        for field in text[len("item-") : match.start(2) - len("-i")].split("-"):
            letter, value = field[:1], field[1:]
            if not value or letter not in "tpgkbfeur" or letter in known or (letter in "tpe" and not _is_number(value)):
                unknown.append(field)
            else:
                known[letter] = value
        due, expires = known.get("t"), known.get("e")
        return cls(
            text,
            later,
            sequence,
            None if due is None else _moment(due),
            known.get("g"),
            known.get("k"),
            known.get("b"),
            known.get("f"),
            None if expires is None else _moment(expires),
            "u" in known,
            _priority(known.get("p")),
            tuple(unknown),
        )

    @property
    def prefix(self) -> str:
        """Everything before the sequence, for creating the item again with all its fields, unknown ones too."""
        match = _match(self.text)
        return self.text if match is None else self.text[: match.start(3)]


def item_prefix(
    id: str,
    *,
    due: int | None = None,
    group: str | None = None,
    key: str | None = None,
    batch: str | None = None,
    filters: str | None = None,
    expires: int | None = None,
    unique: bool = False,
) -> str:
    """The name to create a sequential item under: everything before the sequence, ending in a dash.

    Args:
        id: the item's id.
        due: when it may be taken, in milliseconds since 1970.
        group: `key_hash` of its group.
        key: `key_hash` of its key, or `payload_hash`.
        batch: the staged batch it belongs to.
        filters: the digest of its filters.
        expires: when its life ends, in milliseconds since 1970.
        unique: whether a znode under ``keys/`` goes with it.

    Raises:
        MalformedError: a field is empty or holds a dash or slash, or a moment is out of range.
    """
    _check_field("id", id)
    head = "item-"
    if due is not None:
        head = f"{head}t{_check_moment('due', due)}-"
    if expires is not None:
        head = f"{head}e{_check_moment('expires', expires)}-"
    if group is not None:
        head = f"{head}g{_check_field('group', group)}-"
    if key is not None:
        head = f"{head}k{_check_field('key', key)}-"
    if unique:
        head = f"{head}u1-"
    if batch is not None:
        head = f"{head}b{_check_field('batch', batch)}-"
    if filters is not None:
        head = f"{head}f{_check_field('filters', filters)}-"
    return f"{head}i{id}-"


def plain_prefix(id: str) -> str:
    """What `item_prefix` makes of an id of ours alone, which needs no check."""
    return f"item-i{id}-"


def scheduled_prefix(prefix: str, due: int, priority: int = 0) -> str:
    """The prefix of an item's name with a due time, in milliseconds since 1970, and a priority in the place of any.

    Raises:
        MalformedError: the due time is out of range.
    """
    urgency = f"p{priority - FIRST_PRIORITY:03d}-" if priority else ""
    return f"item-t{_check_moment('due', due)}-{urgency}{unscheduled_prefix(prefix)[len('item-') :]}"


def unscheduled_prefix(prefix: str) -> str:
    """The prefix of an item's name without due time and priority."""
    match = _SCHEDULED.match(prefix)
    return prefix if match is None else f"item-{prefix[match.end() :]}"


def item_id(text: str) -> str:
    """The id in an item's name, as `ItemName.parse` finds it, at a fraction of its cost.

    Raises:
        MalformedError: it is not the name of an item.
    """
    match = _match(text)
    if match is None:
        raise _not_an_item(text)
    return match[1] or match[2] or _foreign_id(match[3])


def id_at(path: str) -> str:
    """The id in the path of an item, whose name has been read before: as `item_id` finds it, at a third of its cost.

    Raises:
        MalformedError: it is not the path of an item.
    """
    _, mark, rest = path.rpartition("/item-i")
    first, _, sequence = rest.partition("-")
    return first if mark and sequence.isdigit() else item_id(path.rpartition("/")[2])


def item_sequence(text: str) -> int:
    """The sequence in an item's name, as `ItemName.parse` finds it, at a fraction of its cost.

    Raises:
        MalformedError: it is not the name of an item.
    """
    match = _match(text)
    if match is None:
        raise _not_an_item(text)
    return int(match[3])


def item_group(text: str) -> str | None:
    """The hash of the group in an item's name; None when it is in no group, or no item's name.

    A group field that is no `key_hash` makes no group: its lock might be taken for that of an item.
    """
    if "-g" not in text:
        return None
    match = _GROUP.fullmatch(text)
    return None if match is None or len(text) > _LONGEST else match[1]


def key_hash(key: str) -> str:
    """What names a unique key or a group in ZooKeeper: the first 160 bits of SHA-256 as 32 letters of base32, small.

    Raises:
        InvalidOptionError: the key is not a text that UTF-8 can hold.
    """
    try:
        data = key.encode()
    except UnicodeEncodeError as error:
        raise InvalidOptionError(f"{key!r} cannot be a key or group: it is not valid Unicode") from error
    return _hash(data)


def payload_hash(payload: bytes) -> str:
    """What stands for the key of a message that was given none: equal payloads have equal ones.

    It is never the `key_hash` of a key: no text in UTF-8 begins with the byte that is put before the payload.
    """
    return _hash(b"\xff" + payload)


def _hash(data: bytes) -> str:
    return b32encode(sha256(data).digest()[:_KEY_BYTES]).decode().lower()


def _foreign_id(digits: str) -> str:
    # Ids hold no dash; a negative sequence must not take the id of a positive one either.
    return "n" + digits[1:] if digits[0] == "-" else digits


def _priority(digits: str | None) -> int:
    number = 0 if digits is None or len(digits) != PRIORITY_DIGITS else int(digits) + FIRST_PRIORITY
    return number if number <= LAST_PRIORITY else 0


def _is_number(value: str) -> bool:
    return value.isascii() and value.isdigit()


def _moment(digits: str) -> int:
    return min(int(digits), LAST_MOMENT) if len(digits) <= _DUE_DIGITS else LAST_MOMENT


def _check_moment(field: str, ms: int) -> int:
    if not 0 <= ms <= LAST_MOMENT:
        raise MalformedError(f"{field} {ms} is not a moment between 1970 and 9999 in milliseconds")
    return ms


def _check_field(field: str, value: str) -> str:
    if not value or "-" in value or "/" in value:
        raise MalformedError(f"the {field} of an item's name is empty or holds a dash or slash: {value[:_SHOWN]!r}")
    return value


def _not_an_item(text: str) -> MalformedError:
    return MalformedError(f"{text[:_SHOWN]!r} is not the name of an item")
