"""The ids of messages, and the names of items. An item's name holds the data by which consumers select it.

``item[-t<due ms>][-p<priority>][-e<end ms>][-g<group hash>][-k<key hash>][-u1][-b<batch>][-f<filter digest>]``,
optionally ``-r<row>``, and then ``-i<id>-<sequence>``. A message that has left a bundle is ``item-m<position>-i<id>-
<sequence>``, with its position in the bundle in two digits, and the sequence of the bundle.

- ``p``, the priority + 128 in three digits, appears only with ``t``. Other items have the priority of their lane.
- ``e`` is the time of expiry. ``u1`` says that the key is unique: the item has a znode under ``keys/``.
- ``r`` is the writer's own identification, by which it checks whether a message has been put. Consumers ignore it.
- ``o``, ``c``, ``n`` and ``s`` belong to single features: see `compaction.PUT_BEFORE` and `compaction.ASKS`,
  `item_node`, and notifications.

Fields are separated by dashes and start with their letter. The id is the last field. A field is kept with the name but
ignored if its letter is unknown or repeated, if it is empty, or if it is a due time that is not a number. The sequence
is ZooKeeper's: ten digits, or a minus and nine or ten digits once the counter has overflowed. An id has at most 24
characters, and the whole name 1,024: a longer name is not an item's. The id of a plain ``item-0000000042``, put by
another program, is its digits; for a negative sequence it is ``n`` and the digits.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from itertools import islice, product
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from .errors import MalformedError
from .fields import LAST_MOMENT, check_moment
from .lanes import FIRST_PRIORITY, LAST_PRIORITY, PRIORITY_DIGITS, priority_of

if TYPE_CHECKING:
    from collections.abc import Callable

BASE62: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""The digits of ids, ordered by value and by ASCII code."""

CLIENT_DIGITS: Final = 12
"""The length of the client's own id, with which the ids that it makes begin at first."""

_HIGH_DIGITS: Final = 4
_PAIRS: Final = tuple(high + low for high, low in product(BASE62, repeat=2))
_VALUES: Final = {digit: value for value, digit in enumerate(BASE62)}

# Groups: the id if it is the first field (the usual case), the id behind other fields, the sequence.
# Producers choose names freely, so lengths are limited. Unlimited ids would make lock paths that together exceed what a
# server survives in the one transaction at their session's end. Unlimited names would make requests that it refuses.
_ITEM: Final = re.compile(
    r"(?s:(?!.{1025}))item-(?:i([^-/]{1,24})-|(?:[^-/]*-)*?i([^-/]{1,24})-)?([0-9]{10}|-[0-9]{9,10})"
)
_match = _ITEM.fullmatch
#: The field of a pending batch, with its dash.
BATCH_FIELD: Final = "b[a-z2-7]{32}-"
_STAGED: Final = re.compile(f"item-({BATCH_FIELD})i")
_BUNDLE: Final = re.compile(r"bundle-[^/]*-i([0-9A-Za-z]{1,24})-[0-9]{10}")
_GROUP: Final = re.compile(r"item-(?:[^-/g][^-/]*-)*g([a-z2-7]{32})-(?:[^-/]*-)*i[^-/]{1,24}-[0-9]{10}")
_URGENT: Final = re.compile(r"item-t[0-9]+-p([0-9]{3})-")
_SCHEDULED: Final = re.compile(r"item-t[0-9]+-(?:p[0-9]{3}-)?")

#: Matches the name of a delayed item up to its due time and, if it has one, its priority; cheaper than a parsed name.
match_due: Final = re.compile(r"item-t([0-9]{1,15})-(p[0-9]{3}-)?").match

#: The length of a sequence number that is not negative.
SEQUENCE_DIGITS: Final = 10
#: How the name of a message begins that has left a bundle.
LEFT_BUNDLE: Final = "item-m"
_MEMBER_AT: Final = re.compile(f"/{LEFT_BUNDLE}[0-9]{{2}}-i[^/]*$")
_DUE_DIGITS: Final = 15
_LONGEST: Final = 1024
_SHOWN: Final = 80


class IdSource:
    """Makes ids for one session: a random nonce of 12 base62 digits (71 bits), then a counter of 6 digits.

    Ids with the same nonce sort in the order of their creation. After 62**6 ids the source draws a new nonce.

    Args:
        entropy: returns a given number of random bytes; default: `os.urandom`.
    """

    __slots__ = ("_entropy", "_head", "_high", "_nonce", "_pairs", "client")

    def __init__(self, entropy: Callable[[int], bytes] = os.urandom) -> None:
        self._entropy = entropy
        self.client: Final = _nonce(entropy)
        """The id of this client in ZooKeeper, for its whole life."""
        self._nonce = self.client
        self._start(0)

    def next(self) -> str:
        """Return a new id: 18 base62 digits, safe in URLs and znode names."""
        # The last two digits come from a prepared list: an id costs one iteration and one concatenation.
        for pair in self._pairs:
            return self._head + pair
        if self._high + 1 < len(BASE62) ** _HIGH_DIGITS:
            self._start(self._high + 1)
        else:
            self._nonce = _nonce(self._entropy)
            self._start(0)
        return self._head + next(self._pairs)

    def take(self, number: int) -> list[str]:
        """Return this many new ids, as `next` would return them one by one."""
        head = self._head
        ids = [head + pair for pair in islice(self._pairs, number)]
        while len(ids) < number:
            ids.append(self.next())
            head = self._head
            ids += [head + pair for pair in islice(self._pairs, number - len(ids))]
        return ids

    def _start(self, high: int) -> None:
        self._high = high
        self._head = self._nonce + _digits(high, _HIGH_DIGITS)
        self._pairs = iter(_PAIRS)


def id_count(text: str, end: int = 0) -> int:
    """Return the last three digits of the counter in the id at the end of a text, or before a negative index.

    Raises: ValueError: they are no digits.
    """
    try:
        return (_VALUES[text[end - 3]] * 62 + _VALUES[text[end - 2]]) * 62 + _VALUES[text[end - 1]]
    except (KeyError, IndexError):
        raise ValueError(text) from None


def _nonce(entropy: Callable[[int], bytes]) -> str:
    # 128 bits are reduced to 71, so the bias of the remainder is negligible.
    return _digits(int.from_bytes(entropy(16), "big") % len(BASE62) ** CLIENT_DIGITS, CLIENT_DIGITS)


def _digits(number: int, width: int) -> str:
    text = ""
    for _ in range(width):
        number, digit = divmod(number, len(BASE62))
        text = BASE62[digit] + text
    return text


@dataclass(frozen=True, slots=True)
class ItemName:
    """The parsed name of an item; ``text`` is the whole name."""

    text: str
    id: str
    sequence: int
    due: int | None = None
    """The due time, in milliseconds since 1970 in ZooKeeper's time; None: no delay."""
    group: str | None = None
    key: str | None = None
    batch: str | None = None
    tags: str | None = None
    expires: int | None = None
    """The time of expiry, in milliseconds since 1970 in ZooKeeper's time; None: never."""
    unique: bool = False
    """Whether its key is unique among the messages in the queue."""
    priority: int = 0
    """The priority of a delayed item; other items have the priority of their lane."""
    unknown: tuple[str, ...] = ()
    """The ignored fields with their letters, in their order."""

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse the name of an item; return None if it is not one."""
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
            if (
                not value
                or letter not in "tpgkbfeurm"
                or letter in known
                or (letter in "tpe" and not _is_number(value))
            ):
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
        """The part before the sequence, which creates the item again with all its fields, including ignored ones."""
        match = _match(self.text)
        return self.text if match is None else self.text[: match.start(3)]


class ItemRef(NamedTuple):
    """A place or path of an item, split into its lane and its name.

    The name may end before the sequence. A tuple, because consumers split the place of each item that is reported to
    them.
    """

    lane: str
    name: str

    @classmethod
    def parse(cls, path: str) -> Self:
        """Split a place or path; the lane of a name alone is empty."""
        return cls._make(path.rpartition("/")[::2])

    @property
    def path(self) -> str:
        """The place or path."""
        return f"{self.lane}/{self.name}"

    def with_field(self, field: str) -> Self:
        """Return the item with a field added before its id; its name must end before the sequence."""
        return self._replace(name=with_field(self.name, field))

    def without_node(self) -> Self:
        """Return the item without the node's field."""
        return self._replace(name=without_node(self.name))


def name_at(path: str) -> str:
    """Return the name at the end of a path or place; a name alone is returned as it is."""
    return path.rpartition("/")[2]


def lane_at(path: str) -> str:
    """Return the lane in the path or place of an item."""
    return path.rpartition("/")[0]


def priority_at(path: str) -> int:
    """Return the priority of an item from its place or path: from its lane or, if it is delayed, from its name."""
    lane, _, name = path.rpartition("/")
    match = _URGENT.match(name)
    return priority_of(lane) if match is None else int(match[1]) + FIRST_PRIORITY


def item_prefix(
    id: str,
    *,
    due: int | None = None,
    group: str | None = None,
    key: str | None = None,
    batch: str | None = None,
    tags: str | None = None,
    expires: int | None = None,
    unique: bool = False,
) -> str:
    """Return the name to create a sequential item under: the part before the sequence, ending in a dash.

    Args:
        id: the item's id.
        due: the due time, in milliseconds since 1970.
        group: `key_hash` of its group.
        key: `key_hash` of its key, or `payload_hash`.
        batch: the batch it belongs to, pending until complete.
        tags: the digest of its tags.
        expires: the time of expiry, in milliseconds since 1970.
        unique: whether the item has a znode under ``keys/``.

    Raises:
        MalformedError: a field is empty or contains a dash or slash, or a time is out of range.
    """
    _check_field("id", id)
    head = "item-"
    if due is not None:
        head = f"{head}t{check_moment(due, 'due')}-"
    if expires is not None:
        head = f"{head}e{check_moment(expires, 'expires')}-"
    if group is not None:
        head = f"{head}g{_check_field('group', group)}-"
    if key is not None:
        head = f"{head}k{_check_field('key', key)}-"
    if unique:
        head = f"{head}u1-"
    if batch is not None:
        head = f"{head}b{_check_field('batch', batch)}-"
    if tags is not None:
        head = f"{head}f{_check_field('tags', tags)}-"
    return f"{head}i{id}-"


def plain_prefix(id: str, batch: str = "") -> str:
    """Return the result of `item_prefix` for one of our own ids without options; it needs no check.

    ``batch`` is the `batch_field` of the result.
    """
    return f"item-{batch}i{id}-"


def batch_field(prefix: str) -> str | None:
    """Return the field of the pending batch in an item's name up to its sequence, with its dash, or an empty text.

    None: the name has other fields, which the name of a bundle cannot have.
    """
    if prefix.startswith("item-i"):
        return ""
    match = _STAGED.match(prefix)
    return None if match is None else match[1]


def scheduled_prefix(prefix: str, due: int, priority: int = 0) -> str:
    """Return an item's prefix with a due time (milliseconds since 1970) and priority instead of its own.

    Raises:
        MalformedError: the due time is out of range.
    """
    urgency = f"p{priority - FIRST_PRIORITY:03d}-" if priority else ""
    return f"item-t{check_moment(due, 'due')}-{urgency}{unscheduled_prefix(prefix)[len('item-') :]}"


def unscheduled_prefix(prefix: str) -> str:
    """Return an item's prefix without due time and priority."""
    match = _SCHEDULED.match(prefix)
    return prefix if match is None else f"item-{prefix[match.end() :]}"


def item_id(text: str) -> str:
    """Return the id in an item's name like `ItemName.parse`, at a fraction of the cost.

    Raises:
        MalformedError: it is not the name of an item.
    """
    match = _match(text)
    if match is None:
        raise _not_an_item(text)
    return match[1] or match[2] or _foreign_id(match[3])


def candidate_id(text: str) -> str:
    """Return the id in the name of an item or a bundle.

    Raises:
        MalformedError: it is neither.
    """
    match = _match(text)
    if match is not None:
        return match[1] or match[2] or _foreign_id(match[3])
    bundle = _BUNDLE.fullmatch(text)
    if bundle is None or len(text) > _LONGEST:
        raise _not_an_item(text)
    return bundle[1]


def candidate_id_at(path: str) -> str:
    """Return the id in the path of an item or a bundle whose name has been checked before."""
    _, mark, rest = path.rpartition("/item-i")
    first, _, sequence = rest.partition("-")
    return first if mark and sequence.isdigit() else candidate_id(name_at(path))


def id_at(path: str) -> str:
    """Return the id in the path of an item whose name has been checked before, at a third of the cost of `item_id`.

    Raises:
        MalformedError: it is not the path of an item.
    """
    _, mark, rest = path.rpartition("/item-i")
    first, _, sequence = rest.partition("-")
    return first if mark and sequence.isdigit() else item_id(name_at(path))


def item_sequence(text: str) -> int:
    """Return the sequence in an item's name like `ItemName.parse`, at a fraction of the cost.

    Raises:
        MalformedError: it is not the name of an item.
    """
    match = _match(text)
    if match is None:
        raise _not_an_item(text)
    return int(match[3])


def item_group(text: str) -> str | None:
    """Return the hash of the group in an item's name; None if it is in no group, or if it is not an item's name.

    A group field that is not a `key_hash` is ignored, because its lock could be mistaken for an item's.
    """
    if "-g" not in text:
        return None
    match = _GROUP.fullmatch(text)
    return None if match is None or len(text) > _LONGEST else match[1]


def item_field(name: str, letter: str) -> str:
    """Return the first field with this letter in an item's name, without the letter; empty if there is none."""
    return name.partition(f"-{letter}")[2].partition("-")[0]


def moment_field(name: str, letter: str) -> int | None:
    """Return the moment in the first field with this letter in an item's name, ms; None: it is not a number."""
    value = item_field(name, letter)
    return _moment(value) if _is_number(value) else None


def has_field(name: str, letter: str) -> bool:
    """Whether an item's name may have a field that begins so: a cheap test before it is parsed."""
    return f"-{letter}" in name


def only_key(name: str) -> str | None:
    """Return the key of an item that has only a key and an id in its name; None for any other name."""
    head, _, _ = name.rpartition("-i")
    _, mark, key = head.partition("item-k")
    return key if mark and key and "-" not in key else None


def is_plain_at(path: str) -> bool:
    """Whether the item at a path or place has no other field in its name than its id, or its former position."""
    return "/item-i" in path or _MEMBER_AT.search(path) is not None


def single_place(place: str, message_id: str, position: int) -> str:
    """Return the place of the single item that a message becomes when it leaves the bundle at ``place``."""
    lane, name = ItemRef.parse(place)
    return f"{lane}/{LEFT_BUNDLE}{position:02d}-i{message_id}-{name.rpartition('-')[2]}"


def item_number(name: str) -> int:
    """Return the number by which an item is dealt to a consumer: its sequence, or the count in its id.

    Messages that have left a bundle share its sequence. Their ids were made one after the other, like those of the next
    bundle of the same put.

    Raises: ValueError: it has none.
    """
    if not name.startswith(LEFT_BUNDLE):
        return int(name[-SEQUENCE_DIGITS:])
    return id_count(name, -SEQUENCE_DIGITS - 1)


def item_node(name: str) -> str | None:
    """Return the hash of the node in an item's name; None: any node may take the item."""
    # Fields are separated by dashes and contain none. The id is the last field.
    head, _, _ = name.rpartition("-i")
    _, mark, rest = head.partition("-n")
    return rest.partition("-")[0] if mark else None


def with_field(prefix: str, field: str) -> str:
    """Return an item's name up to its sequence, with a field added before its id."""
    head, _, rest = prefix.rpartition("-i")
    return f"{head}-{field}-i{rest}"


def with_key(name: str, old: str, new: str) -> str:
    """Return an item's name with another key's hash."""
    return name.replace(f"-k{old}-", f"-k{new}-", 1)


def without_end(prefix: str) -> str:
    """Return an item's name up to its sequence, without the time of expiry."""
    head, end, rest = prefix.partition("-e")
    return f"{head}-{rest.partition('-')[2]}" if end and rest.partition("-")[0].isdigit() else prefix


def without_node(name: str) -> str:
    """Return an item's name without the node's field."""
    head, mark, rest = name.rpartition("-i")
    before, _, after = head.partition("-n")
    _, dash, fields = after.partition("-")
    return f"{before}{dash}{fields}{mark}{rest}"


def _foreign_id(digits: str) -> str:
    # Ids contain no dash, and the id of a negative sequence must differ from that of a positive one.
    return "n" + digits[1:] if digits[0] == "-" else digits


def _priority(digits: str | None) -> int:
    number = 0 if digits is None or len(digits) != PRIORITY_DIGITS else int(digits) + FIRST_PRIORITY
    return number if number <= LAST_PRIORITY else 0


def _is_number(value: str) -> bool:
    return value.isascii() and value.isdigit()


def _moment(digits: str) -> int:
    return min(int(digits), LAST_MOMENT) if len(digits) <= _DUE_DIGITS else LAST_MOMENT


def _check_field(field: str, value: str) -> str:
    if not value or "-" in value or "/" in value:
        raise MalformedError(f"the {field} of an item's name is empty or contains a dash or slash: {value[:_SHOWN]!r}")
    return value


def _not_an_item(text: str) -> MalformedError:
    return MalformedError(f"{text[:_SHOWN]!r} is not the name of an item")
