"""The record in the znode of a group's ledger, and the state derived from it. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Mapping


class LedgerRecord(NamedTuple):
    """The data of ``ledger/<group>``."""

    identity: str = ""
    """The identity, created with the ledger; empty if an older program created it."""
    run: str = ""
    """The process that took it over last."""
    done: int = -1
    """The highest number of an acknowledged batch."""

    def encode(self, about: Mapping[str, object]) -> bytes:
        """Return the bytes to store, with a description of the process."""
        return json.dumps({**about, "epoch": self.run, "ledger": self.identity, "done": self.done}).encode()

    @classmethod
    def decode(cls, data: bytes) -> LedgerRecord:
        """Decode the stored bytes. A record that does not decode gets a new identity, which no checkpoint has."""
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
    """The state of a ledger."""

    identity: str
    made: int
    """All existing batches have numbers below this."""
    done: int
    """The highest number of an acknowledged batch, or -1."""
    used: bool
    """Whether a batch was acknowledged, or passed to a query."""
    batches: int
    """The number of batches that are not acknowledged."""
