"""The errors that the docstring of a public coroutine lists under ``Raises:``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from docsite.public import by_home, raised_by

if TYPE_CHECKING:
    from types import ModuleType


def said_to_raise(kind: type | ModuleType, name: str) -> set[str] | None:
    """Return the errors under ``Raises:``; None if the reference does not show them."""
    written = getattr(kind, name)
    member = by_home().get(f"{written.__module__}.{written.__qualname__}")
    return None if member is None else {raised.error for raised in raised_by(member)}


def unlisted(kind: type | ModuleType, name: str, error: BaseException | None) -> str | None:
    """Return a sentence about the error of a call if its docstring does not list it; otherwise None."""
    listed = said_to_raise(kind, name)
    if error is None or listed is None or listed & {base.__name__ for base in type(error).mro()}:
        return None
    return f"{kind.__name__}.{name} raises {type(error).__name__}, which is not under Raises: {error}"
