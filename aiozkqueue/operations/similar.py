"""The message for a queue that does not exist: it suggests the existing queue with the most similar name."""

from __future__ import annotations

from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING, Final

from aiozkqueue.layout import QueuePaths
from aiozkqueue.zookeeper import ConnectionLossError, NoAuthError, SessionExpiredError, below

from .queue_names import is_queue_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozkqueue.queue.commit.runtime import Runtime

#: The similarity from which a name is suggested, as `difflib` computes it: one typing error in a name of four letters.
SIMILAR: Final = 0.75
#: The similarity from which a name is suggested for a queue that is being created, where a mistake is less likely.
ALIKE: Final = 0.9
#: The largest number of names that are compared. The comparison blocks the event loop.
COMPARED: Final = 1_000
_SUGGESTED: Final = 3


async def absence(runtime: Runtime, name: str) -> str:
    """Return the message for a queue that does not exist, which suggests a similar name if there is one."""
    return f"there is no queue {name!r} below {runtime.root}; {remedy(await similar_queue(runtime, name))}"


def remedy(similar: str | None) -> str:
    """Return the advice for a queue that does not exist."""
    return "its first put creates it" if similar is None else f"did you mean {similar!r}?"


async def similar_queue(
    runtime: Runtime, name: str, *, similarity: float = SIMILAR, visible: Callable[[str], bool] = lambda _name: True
) -> str | None:
    """Return the existing queue whose name is most similar to ``name``, among those that are ``visible``.

    None if no name is similar, or if the root cannot be listed: a suggestion must not replace the error it belongs to.
    """
    try:
        names = await below(runtime.zookeeper, runtime.root)
        possible = (other for other in sorted(names) if _could_be(name, other, similarity) and visible(other))
        for other in get_close_matches(name, islice(possible, COMPARED), _SUGGESTED, similarity):
            if await runtime.zookeeper.exists(QueuePaths(runtime.root, other).items) is not None:
                return other
    except (NoAuthError, ConnectionLossError, SessionExpiredError):
        return None
    return None


def _could_be(name: str, other: str, similarity: float) -> bool:
    """Whether a name is similar enough by its length alone, and is a queue's."""
    shorter, longer = sorted((len(name), len(other)))
    return other != name and 2 * shorter >= similarity * (shorter + longer) and is_queue_name(other)
