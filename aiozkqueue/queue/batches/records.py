"""What the znode of a group's ledger holds, and what follows from it. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Mapping


class LedgerRecord(NamedTuple):
    """The data of ``ledger/<group>``."""

    identity: str = ""
    """Made once, when the ledger is made; empty where an older program made it."""
    run: str = ""
    """Which process has taken it over last."""
    done: int = -1
    """The highest number of a batch that was acknowledged."""

    def encode(self, about: Mapping[str, object]) -> bytes:
        """Return the bytes to store, with what tells about the process."""
        return json.dumps({**about, "epoch": self.run, "ledger": self.identity, "done": self.done}).encode()

    @classmethod
    def decode(cls, data: bytes) -> LedgerRecord:
        """Read what is stored. What does not decode has no identity, so that it gets one that no checkpoint has."""
        try:
            fields: object = json.loads(data or b"{}")
        except (ValueError, RecursionError):
            return cls()
        if not isinstance(fields, dict):
            return cls()
        known = cast("dict[str, object]", fields)
        identity, run, done = known.get("ledger"), known.get("epoch"), known.get("done")
        if not isinstance(identity, str):
            return cls()
        return cls(identity, str(run), done if isinstance(done, int) else -1)


class LedgerState(NamedTuple):
    """Where a ledger stands."""

    identity: str
    made: int
    """Numbers of batches that were made are less than this."""
    done: int
    """The highest number of a batch that was acknowledged, or -1."""
    used: bool
    """Whether a batch was acknowledged, or handed out to a query."""
    batches: int
    """How many batches are not acknowledged."""
