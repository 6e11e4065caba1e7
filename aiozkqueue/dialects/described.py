"""The stored settings of another program's layout: the reverse of `Dialect.settings`."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.layout import MalformedError

from .curator import CuratorKind, curator
from .kazoo import kazoo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import JsonValue

    from .dialect import Dialect


def described(path: str, settings: Mapping[str, JsonValue]) -> Dialect:
    """Return the layout of a queue at a path from its stored settings. Raises: MalformedError."""
    program = settings.get("program")
    try:
        if program == "kazoo":
            return kazoo(path, locking=_flag(settings, "locking"))
        if program == "curator":
            # That function refuses an unknown kind.
            kind = cast("CuratorKind", _text(settings, "kind"))
            return curator(path, _text(settings, "locks"), kind, compressed=_flag(settings, "compressed"))
    except InvalidOptionError as error:
        raise MalformedError(f"the layout of a queue: {error}") from error
    raise MalformedError(
        f"queue {path[:80]!r} is of program {str(program)[:80]!r}, which this version does not support"
    )


def _flag(settings: Mapping[str, JsonValue], field: str) -> bool:
    value = settings.get(field)
    if not isinstance(value, bool):
        raise MalformedError(f"the layout of a queue: {field!r} is neither true nor false")
    return value


def _text(settings: Mapping[str, JsonValue], field: str) -> str | None:
    value = settings.get(field)
    if value is None or isinstance(value, str):
        return value
    raise MalformedError(f"the layout of a queue: {field!r} is not a string")
