"""Compaction: which messages belong together, and which of them was put last, by the names of their items. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .envelope import decode
from .errors import MalformedError
from .names import ItemName, has_field, moment_field, only_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PUT_BEFORE: Final = "o"
"""The letter of a field of restored items with a key: when the message was first put, in milliseconds since 1970."""

ASKS: Final = "c1"
"""A field of the messages of calls: one that is replaced is read before, because its caller is answered."""


def compaction_key(name: ItemName) -> str | None:
    """Return the text that all messages of one set have in common; None for a message that is in no set.

    These are the key, the tags, and all fields that this module does not know, such as the node that may take it.
    """
    if name.key is None or name.group is not None:
        return None
    return "-".join((name.key, name.tags or "", *filter(_distinguishes, name.unknown)))


def _distinguishes(field: str) -> bool:
    return field[:1] != PUT_BEFORE and field != ASKS


def compaction_key_at(text: str) -> str | None:
    """Return the result of `compaction_key` for a name; if it has a key and an id only, at a fraction of the cost."""
    key = only_key(text)
    if key is not None:
        return f"{key}-"
    name = ItemName.parse(text) if has_field(text, "k") else None
    return None if name is None else compaction_key(name)


def restored_in(names: Sequence[str]) -> dict[str, int]:
    """Return the times at which restored items were first put, by their names."""
    return {name: time for name in names if (time := moment_field(name, PUT_BEFORE)) is not None}


def newest_own(names: Sequence[str], restored: Mapping[str, int]) -> str | None:
    """Return the newest item of a set in the order of their puts that was not restored."""
    return next((name for name in reversed(names) if name not in restored), None)


def newest_restored(restored: dict[str, int]) -> str:
    """Return the restored item that was put last; of several put at one time, the one that was restored last."""
    return max(reversed(restored), key=restored.__getitem__)


def put_at(data: bytes, created: int) -> int:
    """Return when a message was put, ms, from its bytes and the time of its znode's creation."""
    try:
        return decode(data)[0].put_at(created)
    except MalformedError:
        return created
