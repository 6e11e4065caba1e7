"""The progress of an audit, stored in ``<root>/.audit``. Pure.

The version of this znode is the fence. A process that begins or continues an audit writes the znode. If an earlier
process continues later, it is refused when it declares its files complete.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from aiozkqueue.layout import MalformedError
from aiozkqueue.layout.fields import pop_text, read_object, write_object

if TYPE_CHECKING:
    from pydantic import JsonValue

_WHAT = "the state of the audit"


class Phase(enum.Enum):
    """The phase of a run. It does not depend on the process that works on the run."""

    WRITING = "writing"
    """The files are incomplete and must be deleted. All records are still in the histories."""
    WRITTEN = "written"
    """The files are complete. They must be published, and their records removed from the histories."""
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of an audit."""

    name: str
    folder: str
    """The identity of the folder that it writes to."""
    where: str
    """The path of the folder, for display."""
    phase: Phase

    def encode(self) -> bytes:
        """Return the bytes to store."""
        fields: dict[str, JsonValue] = {
            "run": self.name,
            "folder": self.folder,
            "where": self.where,
            "phase": self.phase.value,
        }
        return write_object(fields)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a stored run. Raises: MalformedError."""
        fields = read_object(data, _WHAT)
        texts = [pop_text(fields, name, _WHAT) for name in ("run", "folder", "where", "phase")]
        name, folder, where, phase = (text or "" for text in texts)
        if not name or phase not in _PHASES:
            msg = f"{_WHAT} has no run, or an unknown phase: {phase[:80]!r}"
            raise MalformedError(msg)
        return cls(name=name, folder=folder, where=where, phase=_PHASES[phase])


_PHASES = {phase.value: phase for phase in Phase}
