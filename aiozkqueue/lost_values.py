"""Finds a part of a value that its JSON does not give back: a secret, or a model that is read as another one."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, cast

from pydantic import BaseModel, SecretBytes, SecretStr

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def difference_of(value: object, decoded: object) -> str | None:
    """Return the first model or secret that another one would replace, and the remedy."""
    kind = type(value)
    if isinstance(value, SecretStr | SecretBytes):
        if decoded == value:
            return None
        return f"pydantic writes {kind.__name__} as asterisks; give its field a serializer that returns the secret"
    if _is_model(value) and _is_model(decoded) and not _are_related(kind, type(decoded)):
        return (
            f"{kind.__name__} would be read as {type(decoded).__name__}; distinguish the types of the union by a field "
            "of a Literal type"
        )
    parts, decoded_parts = _parts(value), _parts(decoded)
    for name in parts.keys() & decoded_parts.keys():
        if (difference := difference_of(parts[name], decoded_parts[name])) is not None:
            return difference
    return None


def _is_model(value: object) -> bool:
    return isinstance(value, BaseModel) or is_dataclass(value)


def _parts(value: object) -> Mapping[object, object]:
    """Return the parts of a value by their fields, keys or positions."""
    if isinstance(value, dict):
        return cast("dict[object, object]", value)
    if isinstance(value, list | tuple):
        return dict(enumerate(cast("Iterable[object]", value)))
    if is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in fields(value)}
    return cast("Mapping[object, object]", vars(value)) if isinstance(value, BaseModel) else {}


def _are_related(kind: type, other: type) -> bool:
    """Whether one class is a subclass of the other, or both are of one generic class."""
    return issubclass(_origin(kind), _origin(other)) or issubclass(_origin(other), _origin(kind))


def _origin(kind: type) -> type:
    return getattr(kind, "__pydantic_generic_metadata__", {}).get("origin") or kind
