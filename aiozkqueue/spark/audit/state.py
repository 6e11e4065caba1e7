"""How far an audit has come, as it is stored in ``<root>/.audit``. Pure.

The version of that znode fences: whoever begins or continues with an audit writes to it, and an earlier one that comes
back is refused when it wants to say that its files are whole.
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
    """The properties of a run that do not depend on the process that works on it."""

    WRITING = "writing"
    """Its files are not whole: they are to be thrown away, and the records are all still in the histories."""
    WRITTEN = "written"
    """Its files are whole: they are to be published, and their records removed from the histories."""
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of an audit."""

    name: str
    folder: str
    """The mark of the folder that it writes to."""
    where: str
    """Its path, for people."""
    phase: Phase

    def encode(self) -> bytes:
        """The bytes to store."""
        fields: dict[str, JsonValue] = {
            "run": self.name,
            "folder": self.folder,
            "where": self.where,
            "phase": self.phase.value,
        }
        return write_object(fields)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what is stored. Raises: MalformedError."""
        fields = read_object(data, _WHAT)
        texts = [pop_text(fields, name, _WHAT) for name in ("run", "folder", "where", "phase")]
        name, folder, where, phase = (text or "" for text in texts)
        if not name or phase not in _PHASES:
            msg = f"{_WHAT} lacks its run, or is in no phase that is known: {phase[:80]!r}"
            raise MalformedError(msg)
        return cls(name=name, folder=folder, where=where, phase=_PHASES[phase])


_PHASES = {phase.value: phase for phase in Phase}
