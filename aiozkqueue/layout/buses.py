"""Stored buses: ``<root>/.buses/<bus>``, ``{"groups": ["audit", …]}``.

Each post checks the version of this znode, so a group gets every event posted after it joined. The events of the bus
itself are in the queue ``<bus>``, those of a group in ``<bus>@<group>``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from aiozkqueue.errors import InvalidNameError, InvalidOptionError

from .errors import MalformedError
from .fields import OBJECT_LIMIT, no_fields, read_object, unknown_fields, write_object
from .paths import check_queue_name, check_root

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import JsonValue

_WHAT: Final = "the groups of a bus"


def buses_base(root: str) -> str:
    """Return the parent of all buses below a root. Raises: InvalidOptionError: see `check_root`."""
    check_root(root)
    return f"{root}/.buses"


class BusPaths:
    """The znodes and queues of one bus.

    Raises:
        InvalidOptionError: see `check_root`.
        InvalidNameError: the name is not valid for a bus: as for a queue, without ``@``.
    """

    __slots__ = ("base", "buses", "name")

    def __init__(self, root: str, name: str) -> None:
        self.buses: Final = buses_base(root)
        self.name: Final = _checked(name, "bus")
        self.base: Final = f"{self.buses}/{self.name}"

    def queue(self, group: str | None) -> str:
        """Return the name of the queue of a group, or of the bus itself. Raises: InvalidNameError."""
        return self.name if group is None else self.queue_of_group(group)

    def queue_of_group(self, group: str) -> str:
        """Return the name of the queue of a group. Raises: InvalidNameError."""
        return check_queue_name(f"{self.name}@{_checked(group, 'subscriber group')}", "group")


@dataclass(frozen=True, slots=True)
class BusRecord:
    """The stored record of a bus."""

    groups: tuple[str, ...] = ()
    unknown: Mapping[str, JsonValue] = field(default_factory=no_fields)
    """Fields of other versions, kept when the record is rewritten."""

    def encode(self) -> bytes:
        """Return the bytes to store.

        Raises:
            InvalidOptionError: they exceed 64 KiB.
        """
        data = write_object({**self.unknown, "groups": list(self.groups)})
        if len(data) > OBJECT_LIMIT:
            raise InvalidOptionError(
                f"{_WHAT} take {len(data)} bytes, more than {OBJECT_LIMIT}: use fewer groups, or shorter names"
            )
        return data

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a record; empty bytes are a bus without groups. Raises: MalformedError."""
        if not data:
            return cls()
        fields = read_object(data, _WHAT)
        groups = fields.pop("groups", [])
        texts = [group for group in groups if isinstance(group, str)] if isinstance(groups, list) else None
        if texts is None or not isinstance(groups, list) or len(texts) != len(groups):
            raise MalformedError(f"{_WHAT} are not a list of strings")
        return cls(tuple(texts), unknown_fields(fields, _WHAT))


def _checked(name: str, what: str) -> str:
    name = check_queue_name(name, what)
    if "@" in name:
        raise InvalidNameError(f"{name!r} is not a valid {what} name: '@' separates a bus from its group")
    return name
