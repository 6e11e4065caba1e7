"""Changes that the servers refuse again and again, although each read shows that they are possible."""

from __future__ import annotations

from typing import Final

from aiozkqueue.errors import NotCommittedError

#: How often in a row a change is tried if each read shows that it is possible. Other clients may change the data at the
#: same time, but hardly so often.
MOST_TRIES: Final = 20


def contradiction(queue: str, subject: str) -> NotCommittedError:
    """Return the error of a change that was refused `MOST_TRIES` times, although each read shows that it is possible.

    ``subject`` is the znode that it changes.
    """
    return NotCommittedError(
        f"queue {queue!r}: the servers refuse a change of {subject} again and again, and a read shows no reason; "
        "compare this znode on all servers, and repeat the call"
    )
