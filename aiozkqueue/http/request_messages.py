"""The messages of a request, collected while its body arrives. Pure.

A body is checked in EmoDB's order: its JSON, then permissions, then names and sizes. An error in one message is
therefore kept until the whole body has been read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .core import parameters, problems
from .core.splitting import loads

if TYPE_CHECKING:
    from collections.abc import Callable


class RequestMessages:
    """Messages in their stored form, by the name of the queue in the request.

    Args:
        limit: the maximum number of messages in a request.
        allowed: whether the caller may put to the queue with a given name.
    """

    def __init__(self, limit: int, allowed: Callable[[str], bool]) -> None:
        self._limit = limit
        self._allowed = allowed
        self._messages: dict[str, list[bytes]] = {}
        self._number = 0
        self._forbidden: str | None = None
        self._wrong: problems.ProblemError | None = None

    @property
    def queues(self) -> list[str]:
        """The names, in the order of the request."""
        return list(self._messages)

    def take(self, name: str, text: str | None) -> None:
        """Add the JSON of one message, or a name if it is None. Raises: ProblemError: too many; NotJsonError."""
        if text is None:
            self._messages[name] = []  # of two equal names, the last one counts
            if self._forbidden is None and not self._allowed(name):
                self._forbidden = name
            return
        self._number += 1
        if self._number > self._limit:
            self.check_allowed()
            raise problems.too_many(self._limit)
        value = loads(text)
        if self._wrong is not None:
            return
        try:
            self._messages.setdefault(name, []).append(parameters.message(value))
        except problems.ProblemError as problem:
            self._wrong = problem

    def check_allowed(self) -> None:
        """Refuse a request for a queue that the caller may not put to. Raises: ProblemError."""
        if self._forbidden is not None:
            raise problems.forbidden_queue(self._forbidden)

    def checked(self) -> dict[str, list[bytes]]:
        """Return all messages. Raises: ProblemError: a message is too large."""
        if self._wrong is not None:
            raise self._wrong
        return self._messages
