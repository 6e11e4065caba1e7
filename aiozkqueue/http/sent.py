"""The messages of a request, collected while its body comes in. Pure.

The order in which a body is judged is EmoDB's: its JSON, then permissions, then names and sizes. So what is found wrong
with one message is kept until the whole body has been read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .core import parameters, problems
from .core.splitting import loads

if TYPE_CHECKING:
    from collections.abc import Callable


class Sent:
    """Messages as they are stored, by the names under which they were sent.

    Args:
        limit: how many messages a request may send.
        allowed: whether the caller may put to the queue of a name.
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
        """The names, in the order in which they came."""
        return list(self._messages)

    def take(self, name: str, text: str | None) -> None:
        """Take the JSON of one message, or with None a name. Raises: ProblemError: there are too many; NotJsonError."""
        if text is None:
            self._messages[name] = []  # of two equal names, the later counts
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
        """Refuse a request that names a queue of others. Raises: ProblemError."""
        if self._forbidden is not None:
            raise problems.forbidden_queue(self._forbidden)

    def checked(self) -> dict[str, list[bytes]]:
        """Return all messages. Raises: ProblemError: one is too large."""
        if self._wrong is not None:
            raise self._wrong
        return self._messages
