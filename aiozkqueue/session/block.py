"""Context managers that say how they are used, if a program uses them in another way."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar


class Block:
    """A context manager for `async with`. Its other uses raise errors that name the right one."""

    __slots__ = ()

    _usage: ClassVar[str]
    """The beginning of its block."""

    if not TYPE_CHECKING:  # type checkers reject such uses because the members do not exist

        def __getattr__(self, name: str) -> object:
            """Raises: AttributeError: always."""
            msg = f"{type(self).__name__!r} object has no attribute {name!r}; use `{self._usage}`"
            raise AttributeError(msg, name=name, obj=self)
