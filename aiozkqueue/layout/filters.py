"""Tags of messages, and filters of consumers: which messages a consumer takes. Pure.

A message bears tags, texts and integers by name. They are stored once for each combination, as compact JSON with the
names in order, in ``filters/<digest>``; the item's name bears the digest, so that a consumer can choose by names alone.
A consumer's filter is a `Filter` on one tag, or several combined by `All` and `AnyOf`. A tag that is missing, or of
another type than the filter's, fails the filter; whatever else is stored there breaks nobody.
"""

from __future__ import annotations

import operator
import re
from base64 import b32encode
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeGuard, cast, get_args

from aiozkqueue.errors import InvalidOptionError

from .errors import MalformedError
from .fields import is_text, read_object, write_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pydantic import JsonValue

TagValue: TypeAlias = "str | int"
Tags: TypeAlias = "Mapping[str, TagValue]"
Operator: TypeAlias = Literal["eq", "gt", "ge", "lt", "le"]

#: Bytes of JSON that the tags of one message may take.
TAGS_LIMIT: Final = 4 * 1024
#: Integers that any language's 64 bits hold.
_LARGEST: Final = 2**63 - 1
_DIGEST_BYTES: Final = 10
_OPERATORS: Final[Mapping[str, Callable[[object, object], bool]]] = {
    name: getattr(operator, name) for name in get_args(Operator)
}
# As `names` reads it: the first field of this letter before the id, which is the last of the fields.
_DIGEST: Final = re.compile(r"item-(?:[^-/]*-)*?f([^-/]+)-(?:[^-/]*-)*?i[^-/]{1,24}-(?:[0-9]{10}|-[0-9]{9,10})")


def check_tags(queue: str, tags: object) -> dict[str, TagValue]:
    """Return the tags of a put.

    Raises:
        InvalidOptionError: not a mapping of non-empty texts to texts and integers, or larger than 4 KiB.
    """
    if tags is None:
        return {}
    if not isinstance(tags, Mapping):
        raise InvalidOptionError(f"queue {queue!r}: filters takes a mapping of tags, not {type(tags).__name__}")
    checked: dict[str, TagValue] = {}
    for name, value in cast("Mapping[object, object]", tags).items():
        if not isinstance(name, str) or not name:
            raise InvalidOptionError(f"queue {queue!r}: {name!r} cannot name a tag: give a non-empty str")
        if not _is_value(value):
            raise InvalidOptionError(
                f"queue {queue!r}: tag {name!r} is {value!r}: it must be a str, or an int of at most 64 bits"
            )
        checked[name] = value
    try:
        size = len(encode_tags(checked))
    except ValueError as error:
        raise InvalidOptionError(f"queue {queue!r}: the tags have text that UTF-8 cannot hold: {error}") from error
    if size > TAGS_LIMIT:
        raise InvalidOptionError(f"queue {queue!r}: the tags take {size} bytes, the most is {TAGS_LIMIT}")
    return checked


def encode_tags(tags: Tags) -> bytes:
    """The bytes to store: equal tags are equal bytes.

    Raises:
        ValueError: a text has lone surrogates.
    """
    return write_object(cast("dict[str, JsonValue]", {name: tags[name] for name in sorted(tags)}))


def decode_tags(data: bytes) -> dict[str, TagValue]:
    """The tags in stored bytes; never raises: what is no tag is left out."""
    try:
        fields = read_object(data, "tags")
    except MalformedError:
        return {}
    return usable_tags(fields)


def usable_tags(fields: object) -> dict[str, TagValue]:
    """What of a JSON value can be a tag."""
    if not isinstance(fields, dict):
        return {}
    return {name: value for name, value in cast("dict[str, object]", fields).items() if _is_value(value)}


def tags_digest(data: bytes) -> str:
    """What stands for encoded tags in an item's name: 80 bits of SHA-256 as 16 letters of base32, small."""
    return b32encode(sha256(data).digest()[:_DIGEST_BYTES]).decode().lower()


def name_digest(name: str) -> str | None:
    """The digest in an item's name, as `ItemName.parse` finds it, at a fraction of its cost; None: it has no tags."""
    if "-f" not in name:
        return None
    match = _DIGEST.fullmatch(name)
    return None if match is None else match[1]


@dataclass(frozen=True, slots=True)
class OrderedEnum:
    """A tag whose values have an order of their own, the lowest first.

    Raises:
        InvalidOptionError: no name, fewer than one value, one that is no text, or one twice.
    """

    name: str
    values: tuple[str, ...]

    def __init__(self, name: str, values: Iterable[str]) -> None:
        _check_name(name)
        given: object = values
        chosen = () if isinstance(given, str) else tuple(values)
        if not chosen or not all(is_text(value) for value in chosen) or len(set(chosen)) != len(chosen):
            raise InvalidOptionError(f"OrderedEnum {name!r}: {values!r}: give different texts, the lowest first")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "values", chosen)

    def absolute(self, value: str) -> Filter:
        """For a consumer of this class: it takes what is tagged with just this class.

        Raises:
            InvalidOptionError: there is no such value.
        """
        return Filter(self, "eq", value)

    def at_least(self, value: str) -> Filter:
        """For a consumer of this class: it takes what asks for this class at the most.

        A message tagged ``standard`` asks for a consumer that is ``standard`` at least: ``performance`` takes it too.

        Raises:
            InvalidOptionError: there is no such value.
        """
        return Filter(self, "le", value)


@dataclass(frozen=True, slots=True)
class Filter:
    """A condition on one tag: ``Filter("region", "eq", "eu")`` takes messages whose ``region`` is ``"eu"``.

    The type of ``value`` is the tag's: texts are compared by code point, integers by size, and the values of an
    `OrderedEnum`, given in place of the name, by its order.

    Raises:
        InvalidOptionError: no such operator, or a value of none of these types.
    """

    tag: str | OrderedEnum
    operator: Operator
    value: TagValue

    def __post_init__(self) -> None:
        given: object = self.operator
        if not isinstance(given, str) or given not in _OPERATORS:
            raise InvalidOptionError(f"filter operator {given!r}: there are {', '.join(_OPERATORS)}")
        if isinstance(self.tag, OrderedEnum):
            if self.value not in self.tag.values:
                raise InvalidOptionError(
                    f"{self.value!r} is no value of {self.tag.name!r}: there are {', '.join(self.tag.values)}"
                )
            return
        _check_name(self.tag)
        if not _is_value(self.value):
            raise InvalidOptionError(f"filter on {self.tag!r}: {self.value!r} is no str, nor an int of 64 bits")

    def accepts(self, tags: Tags) -> bool:
        """Tell whether a message with these tags passes."""
        compare = _OPERATORS[self.operator]
        if isinstance(self.tag, OrderedEnum):
            values, found = self.tag.values, tags.get(self.tag.name)
            return found in values and compare(values.index(found), values.index(cast("str", self.value)))
        value = tags.get(self.tag)
        return value is not None and type(value) is type(self.value) and compare(value, self.value)


@dataclass(frozen=True, slots=True, init=False)
class All:
    """Every one of these must pass.

    Raises:
        InvalidOptionError: there is none, or one is no filter.
    """

    filters: tuple[Condition, ...]

    def __init__(self, *filters: Condition) -> None:
        object.__setattr__(self, "filters", _conditions("All", filters))

    def accepts(self, tags: Tags) -> bool:
        """Tell whether a message with these tags passes."""
        return all(one.accepts(tags) for one in self.filters)


@dataclass(frozen=True, slots=True, init=False)
class AnyOf:
    """At least ``n`` of these must pass.

    Raises:
        InvalidOptionError: ``n`` is not from 1 to their number, or one is no filter.
    """

    n: int
    filters: tuple[Condition, ...]

    def __init__(self, n: int, *filters: Condition) -> None:
        chosen = _conditions("AnyOf", filters)
        if type(n) is not int or not 1 <= n <= len(chosen):
            raise InvalidOptionError(f"AnyOf n={n!r}: it must be an integer from 1 to {len(chosen)}")
        object.__setattr__(self, "n", n)
        object.__setattr__(self, "filters", chosen)

    def accepts(self, tags: Tags) -> bool:
        """Tell whether a message with these tags passes."""
        return sum(one.accepts(tags) for one in self.filters) >= self.n


Condition: TypeAlias = "Filter | All | AnyOf"


def check_condition(filters: object) -> Condition | None:
    """Return what a consumer filters by, as given; None: it takes everything.

    Raises:
        InvalidOptionError: it is no `Filter`, `All` or `AnyOf`.
    """
    if filters is None or isinstance(filters, Filter | All | AnyOf):
        return filters
    raise InvalidOptionError(f"filters takes a Filter, All or AnyOf, not {type(filters).__name__}")


def condition_digest(condition: Condition) -> str:
    """What stands for a consumer's filter in the registry: consumers of the same one share what it takes."""
    return tags_digest(repr(condition).encode("utf-8", "surrogatepass"))


def _conditions(what: str, filters: tuple[object, ...]) -> tuple[Condition, ...]:
    checked = [check_condition(one) for one in filters]
    chosen = tuple(one for one in checked if one is not None)
    if not chosen or len(chosen) != len(checked):
        raise InvalidOptionError(f"{what} takes one or more of Filter, All and AnyOf")
    return chosen


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise InvalidOptionError(f"{name!r} cannot name a tag: give a non-empty str, or an OrderedEnum")


def _is_value(value: object) -> TypeGuard[TagValue]:
    if isinstance(value, bool):
        return False
    return isinstance(value, str) or (isinstance(value, int) and -_LARGEST <= value <= _LARGEST)
