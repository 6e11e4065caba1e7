"""The figures of a queue that leave out something that this user may not read."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from aiozkqueue.errors import AccessDeniedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Refusals:
    """Collects the errors of what may not be read, by the figures that leave it out."""

    def __init__(self) -> None:
        self.figures: dict[str, str] = {}
        """The names of these figures, each with a reason."""

    @contextmanager
    def of(self, *figures: str) -> Iterator[list[AccessDeniedError]]:
        """Add these figures if the block ends with an AccessDeniedError, or adds one to the list that it gets."""
        refused: list[AccessDeniedError] = []
        with kept(refused):
            yield refused
        self.add(refused, figures)

    def add(self, refused: Iterable[AccessDeniedError], figures: Iterable[str]) -> None:
        """Add these figures if there is an error."""
        for error in refused:
            self.figures |= dict.fromkeys(figures, str(error))


@contextmanager
def kept(refused: list[AccessDeniedError] | None) -> Iterator[None]:
    """Add an error of the block to the list, if there is one. Raises: AccessDeniedError: there is no list."""
    try:
        yield
    except AccessDeniedError as error:
        if refused is None:
            raise
        refused.append(error)
