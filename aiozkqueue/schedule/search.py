"""How notifications are found: by two keys, which are headers, and by their date. Pure.

The name of an item has the field ``s``: 60 bits of a hash of the second key, and 60 bits of a hash of both. So a search
lists names, and reads only the items that may match.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from aiozkqueue.arguments import plain
from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.layout import decode, key_hash
from aiozkqueue.layout.errors import MalformedError
from aiozkqueue.moments import milliseconds_at, moment_at

if TYPE_CHECKING:
    from aiozkqueue.queue.commit.unclaimed import ItemSnapshot

#: Headers of a notification.
KEY1, KEY2, TOKEN, DATE = "notification-key1", "notification-key2", "notification-token", "notification-at"

#: Letters of each hash in the name of an item.
_LETTERS: Final = 12


class Criteria(NamedTuple):
    """The keys and the last date of the notifications that are searched; None: any."""

    key1: str | None = None
    key2: str | None = None
    until: datetime | None = None

    def prefix(self) -> str | None:
        """Return how the field ``s`` of a match begins; None: it need not have one. Raises: as `search_field`."""
        field = search_field(self.key1, self.key2)
        return field if field is None or self.key1 is not None else field[: 1 + _LETTERS]

    def match(self, found: ItemSnapshot) -> bool:
        """Compare the date and the keys themselves: the name has no past date, and other keys may share its field."""
        try:
            header = decode(found.item.data)[0]
        except MalformedError:
            return False
        headers = header.headers
        if self.until is not None:
            date = date_in(headers.get(DATE), moment_at(header.put_at(found.item.stat.ctime)))
            if aware_ms(date) > aware_ms(self.until):
                return False
        if self.key2 is not None and headers.get(KEY2) != self.key2:
            return False
        return self.key1 is None or headers.get(KEY1) == self.key1


def search_field(key1: str | None, key2: str | None) -> str | None:
    """Return the field of a notification with these keys; None: it has no key.

    Raises: InvalidOptionError: a key is not a str, or the second one is missing.
    """
    check_texts(search_key1=key1, search_key2=key2)
    key1, key2 = (None if key is None else plain(key) for key in (key1, key2))
    if key2 is None:
        if key1 is None:
            return None
        msg = f"search_key1={key1!r} needs search_key2: search by the second key, or by both"
        raise InvalidOptionError(msg)
    both = key_hash(f"{len(key2)}:{key2}{'' if key1 is None else f':{key1}'}")
    return f"s{key_hash(key2)[:_LETTERS]}{both[:_LETTERS]}"


def check_texts(**options: object) -> None:
    """Refuse a key or token that is not a str. Raises: InvalidOptionError."""
    for option, given in options.items():
        if given is not None and (not isinstance(given, str) or given.encode(errors="replace").decode() != given):
            msg = f"{option}={given!r}: give a str that UTF-8 can encode"
            raise InvalidOptionError(msg)


def aware_ms(moment: datetime) -> int:
    """Return the milliseconds of a moment since 1970. Raises: InvalidOptionError: it has no time zone."""
    if not isinstance(cast("object", moment), datetime) or moment.utcoffset() is None:
        msg = f"{moment!r} has no time zone: give an aware datetime"
        raise InvalidOptionError(msg)
    return milliseconds_at(moment)


def date_in(header: str | None, otherwise: datetime) -> datetime:
    """Return the date in the header of a notification, or ``otherwise`` if the header is missing or does not decode."""
    try:
        date = otherwise if header is None else datetime.fromisoformat(header)
    except ValueError:
        return otherwise
    return otherwise if date.utcoffset() is None else date
