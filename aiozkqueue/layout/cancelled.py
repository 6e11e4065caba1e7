"""The held messages of a queue that were cancelled: ``<queue>/cancelled``, their ids, one a line, the newest last.

Their holders watch this znode. A message that is on it has been removed by the multi that wrote it there.
"""

from __future__ import annotations

from typing import Final

#: The most ids that are kept: holders read them at once.
_KEPT: Final = 100
_LONGEST: Final = 16 * 1024


def cancelled_ids(data: bytes) -> list[str]:
    """Return the ids; none if another program wrote something else."""
    if len(data) > _LONGEST:
        return []
    return [line for line in data.decode("utf-8", "replace").split("\n") if line]


def with_cancelled(data: bytes, message_id: str) -> bytes:
    """Return the data with one more id."""
    return "\n".join([*cancelled_ids(data), message_id][-_KEPT:]).encode()
