"""The tags of messages, and the filters by which consumers select messages. Pure.

Tags are texts and integers by name. Each combination is stored once in ``filters/<digest>``, as compact JSON with
sorted names. An item's name contains the digest, so a consumer can select items by name alone. A consumer's filter is a
`Filter` on one tag, or a combination by `All` and `AnyOf`. A tag that is missing, or whose type differs from the
filter's, fails the filter. Malformed tags harm no consumer.
"""

from __future__ import annotations

import operator
import re
from base64 import b32encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeGuard, cast, get_args

from aiozkqueue.arguments import collection, is_choice
from aiozkqueue.errors import InvalidOptionError

from .errors import MalformedError
from .fields import is_text, read_object, write_object

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import JsonValue

TagValue: TypeAlias = "str | int"
Tags: TypeAlias = "Mapping[str, TagValue]"
Operator: TypeAlias = Literal["eq", "gt", "ge", "lt", "le"]

#: Maximum bytes of JSON of one message's tags.
TAGS_LIMIT: Final = 4 * 1024
#: The maximum of a signed 64-bit integer, available in most languages.
_LARGEST: Final = 2**63 - 1
_DIGEST_BYTES: Final = 10
_OPERATORS: Final[Mapping[str, Callable[[object, object], bool]]] = {
    name: getattr(operator, name) for name in get_args(Operator)
}
# As `names` parses it: the first field with this letter before the id, which is the last field.
_DIGEST: Final = re.compile(r"item-(?:[^-/]*-)*?f([^-/]+)-(?:[^-/]*-)*?i[^-/]{1,24}-(?:[0-9]{10}|-[0-9]{9,10})")


def check_tags(queue: str, tags: object) -> dict[str, TagValue]:
    """Return the validated tags of a put.

    Raises:
        InvalidOptionError: they are not a mapping of non-empty texts to texts and integers, or exceed 4 KiB.
    """
    if tags is None:
        return {}
    if not isinstance(tags, Mapping):
        raise InvalidOptionError(f"queue {queue!r}: tags takes a mapping, not {type(tags).__name__}")
    checked: dict[str, TagValue] = {}
    for name, value in cast("Mapping[object, object]", tags).items():
        if not isinstance(name, str) or not name:
            raise InvalidOptionError(f"queue {queue!r}: {name!r} is not a valid name of a tag: give a non-empty str")
        if not _is_value(value):
            raise InvalidOptionError(
                f"queue {queue!r}: tag {name!r} is {value!r}: it must be a str, or an int of at most 64 bits"
            )
        checked[name] = value
    try:
        size = len(encode_tags(checked))
    except ValueError as error:
        raise InvalidOptionError(f"queue {queue!r}: the tags have text that UTF-8 cannot encode: {error}") from error
    if size > TAGS_LIMIT:
        raise InvalidOptionError(f"queue {queue!r}: the tags take {size} bytes, more than {TAGS_LIMIT}")
    return checked


def encode_tags(tags: Tags) -> bytes:
    """Return the bytes to store: equal tags give equal bytes.

    Raises:
        ValueError: a text has lone surrogates.
    """
    return write_object(cast("dict[str, JsonValue]", {name: tags[name] for name in sorted(tags)}))


def decode_tags(data: bytes) -> dict[str, TagValue]:
    """Decode stored tags; never raises: invalid tags are left out."""
    try:
        fields = read_object(data, "tags")
    except MalformedError:
        return {}
    return usable_tags(fields)


def usable_tags(fields: object) -> dict[str, TagValue]:
    """Return the entries of a JSON value that are valid tags."""
    if not isinstance(fields, dict):
        return {}
    return {name: value for name, value in cast("dict[str, object]", fields).items() if _is_value(value)}


def tags_digest(data: bytes) -> str:
    """Return the digest of encoded tags for item names: 80 bits of SHA-256 as 16 lower-case base32 characters."""
    return b32encode(sha256(data).digest()[:_DIGEST_BYTES]).decode().lower()


def name_digest(name: str) -> str | None:
    """Return the digest in an item's name like `ItemName.parse`, at a fraction of the cost; None: there are no tags."""
    if "-f" not in name:
        return None
    match = _DIGEST.fullmatch(name)
    return None if match is None else match[1]


@dataclass(frozen=True, slots=True)
class OrderedEnum:
    """A tag whose values have an order, the lowest first.

    Raises:
        InvalidOptionError: the name is empty, there are no values, or a value is not a str or is repeated.
    """

    name: str
    values: tuple[str, ...]

    def __init__(self, name: str, values: Iterable[str]) -> None:
        _check_name(name)
        chosen = tuple(collection(values, f"OrderedEnum {name!r}: values", "texts"))
        if not chosen or not all(is_text(value) for value in chosen) or len(set(chosen)) != len(chosen):
            raise InvalidOptionError(f"OrderedEnum {name!r}: {values!r}: give distinct strings, the lowest first")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "values", chosen)

    def absolute(self, value: str) -> Filter:
        """Return the filter of a consumer that takes only messages tagged with exactly ``value``.

        Raises:
            InvalidOptionError: there is no such value.
        """
        return Filter(self, "eq", value)

    def at_least(self, value: str) -> Filter:
        """Return the filter of a consumer that takes messages tagged with ``value`` or a lower value.

        A message tagged ``standard`` requires a consumer of at least ``standard``, so ``performance`` takes it too.

        Raises:
            InvalidOptionError: there is no such value.
        """
        return Filter(self, "le", value)


@dataclass(frozen=True, slots=True)
class Filter:
    """A condition on one tag: ``Filter("region", "eq", "eu")`` takes messages whose ``region`` is ``"eu"``.

    ``value`` must have the type of the tag. Strings are compared by code point, and integers by size. With an
    `OrderedEnum` instead of the name, its values are compared by its order.

    Raises:
        InvalidOptionError: the operator is unknown, or the value has another type.
    """

    tag: str | OrderedEnum
    operator: Operator
    value: TagValue

    def __post_init__(self) -> None:
        operator_given: object = self.operator
        if not isinstance(operator_given, str) or operator_given not in _OPERATORS:
            raise InvalidOptionError(
                f"filter operator {operator_given!r} is unknown; the operators are {', '.join(_OPERATORS)}"
            )
        if isinstance(self.tag, OrderedEnum):
            if not is_choice(self.value, *self.tag.values):
                raise InvalidOptionError(
                    f"{self.value!r} is not a value of {self.tag.name!r}; the values are {', '.join(self.tag.values)}"
                )
            return
        _check_name(self.tag)
        if not _is_value(self.value):
            raise InvalidOptionError(f"filter on {self.tag!r}: {self.value!r} is neither a str nor an int of 64 bits")

    def accepts(self, tags: Tags) -> bool:
        """Return whether a message with these tags passes."""
        compare = _OPERATORS[self.operator]
        if isinstance(self.tag, OrderedEnum):
            values, value = self.tag.values, tags.get(self.tag.name)
            return value in values and compare(values.index(value), values.index(cast("str", self.value)))
        value = tags.get(self.tag)
        return value is not None and type(value) is type(self.value) and compare(value, self.value)


@dataclass(frozen=True, slots=True, init=False)
class All:
    """A condition that passes if all of these pass.

    Raises:
        InvalidOptionError: there are no filters, or one is not a filter.
    """

    filters: tuple[Condition, ...]

    def __init__(self, *filters: Condition) -> None:
        object.__setattr__(self, "filters", _conditions("All", filters))

    def accepts(self, tags: Tags) -> bool:
        """Return whether a message with these tags passes."""
        return all(condition.accepts(tags) for condition in self.filters)


@dataclass(frozen=True, slots=True, init=False)
class AnyOf:
    """A condition that passes if at least ``n`` of these pass.

    Raises:
        InvalidOptionError: ``n`` is not from 1 to the number of filters, or one is not a filter.
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
        """Return whether a message with these tags passes."""
        return sum(condition.accepts(tags) for condition in self.filters) >= self.n


Condition: TypeAlias = "Filter | All | AnyOf"


def check_condition(filters: object) -> Condition | None:
    """Return a consumer's filter unchanged, after a check of its type; None: the consumer takes everything.

    Raises:
        InvalidOptionError: it is not a `Filter`, `All` or `AnyOf`.
    """
    if filters is None or isinstance(filters, Filter | All | AnyOf):
        return filters
    raise InvalidOptionError(f"filters takes a Filter, All or AnyOf, not {type(filters).__name__}")


def condition_digest(condition: Condition) -> str:
    """Return the digest of a consumer's filter for the registry; consumers with equal filters share their messages."""
    return tags_digest(repr(condition).encode("utf-8", "surrogatepass"))


def _conditions(what: str, filters: tuple[object, ...]) -> tuple[Condition, ...]:
    checked = [check_condition(condition) for condition in filters]
    chosen = tuple(condition for condition in checked if condition is not None)
    if not chosen or len(chosen) != len(checked):
        raise InvalidOptionError(f"{what} takes one or more of Filter, All and AnyOf")
    return chosen


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise InvalidOptionError(f"{name!r} is not a valid name of a tag: give a non-empty str, or an OrderedEnum")


def _is_value(value: object) -> TypeGuard[TagValue]:
    if isinstance(value, bool):
        return False
    return isinstance(value, str) or (isinstance(value, int) and -_LARGEST <= value <= _LARGEST)
