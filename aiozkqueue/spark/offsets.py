"""The offsets of a stream in Spark's checkpoint, and the check that they belong to a ledger. Pure.

An offset has the number of a batch, the identity of the ledger, and the identity of the stream. A stream is the use of
a ledger by one checkpoint, and begins with the first offset of the checkpoint. If a query continues with
``failOnDataLoss=false`` although its checkpoint does not belong to the ledger, another stream begins.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from aiozkqueue.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiozkqueue.batches.records import LedgerState

    from .options import Options


@dataclass(frozen=True, slots=True)
class Offset:
    """The position of a stream."""

    seq: int = -1
    """The number of the last batch; -1 before the first."""
    ledger: str = ""
    stream: str = ""

    @classmethod
    def decode(cls, value: Mapping[str, object]) -> Offset:
        """Decode an offset. Raises: CheckpointError: it belongs to another source."""
        try:
            return cls(int(cast("Any", value["seq"])), str(value.get("ledger", "")), str(value.get("stream", "")))
        except (LookupError, TypeError, ValueError) as error:
            msg = f"the offset {value!r} in the checkpoint is not from a queue: use the checkpoint of this stream"
            raise CheckpointError(msg) from error

    def encode(self) -> dict[str, Any]:
        """Return the offset as Spark stores it in JSON."""
        return asdict(self) if self.ledger else {"seq": self.seq}

    def follows(self, start: Offset) -> bool:
        """Whether a batch from ``start`` can end here."""
        if self == BEGINNING:
            return False
        return (self.ledger, self.stream) != (start.ledger, start.stream) or self.seq > start.seq


BEGINNING: Final = Offset()


def require_beginning(state: LedgerState, options: Options) -> None:
    """Refuse to start with a ledger that another checkpoint has used. Raises: CheckpointError."""
    if state.used and not options.continues_ledger:
        waiting = f"{state.batches} of its batches are not acknowledged"
        held = waiting if state.batches else "all of its batches are acknowledged"
        msg = (
            f"queue {options.queue!r}: the ledger of group {options.group!r} was used with another checkpoint, and "
            f"this query has a new one; {held}. Use that checkpoint, or another group; or set startingOffsets=earliest "
            "to begin with the batches that are not acknowledged. Then give the query an empty output folder, because "
            "Spark's file sink skips the batch numbers that its folder has recorded"
        )
        raise CheckpointError(msg)


def require_same(offset: Offset, state: LedgerState, options: Options) -> None:
    """Refuse an offset that does not belong to this ledger. Raises: CheckpointError."""
    what = f"queue {options.queue!r}: the checkpoint is at batch {offset.seq} of ledger {offset.ledger or 'unknown'}"
    whose = f"group {options.group!r} of this queue below {options.root} of {options.hosts}"
    if offset.ledger != state.identity:
        why = f"{what}, but {whose} has ledger {state.identity}."
    elif offset.seq >= state.made:
        why = f"{what}, but {whose} has made {state.made} batches: were the servers restored from a backup?"
    elif offset.seq < state.done:
        why = f"{what}, but {whose} has acknowledged batch {state.done}: was an old copy of the checkpoint restored?"
    else:
        return
    msg = (
        f"{why} Nothing was acknowledged. Use the checkpoint, group, queue, root and servers that belong together; or "
        "set failOnDataLoss=false to continue with the contents of this ledger and this queue"
    )
    raise CheckpointError(msg)
