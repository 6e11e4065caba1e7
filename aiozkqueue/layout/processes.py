"""Descriptions of sessions, for operators: the JSON data of their folders, entries as consumers, and ledger locks."""

from __future__ import annotations

import json
from typing import NamedTuple, Self

from .fields import readable_fields


class ProcessInfo(NamedTuple):
    """Where a session runs."""

    host: str = ""
    """The name of its machine; empty if the description does not have one."""
    pid: int = 0
    """The number of its process; 0 if the description does not have one."""
    client: str = ""
    """The id of the session; empty where the path has it."""
    name: str = ""
    """The name that its program gave it, or empty."""

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a description; fields that are missing or malformed have their defaults."""
        fields = readable_fields(data, "the description of a session")
        host, client, name = (
            text if isinstance(text := fields.get(key), str) else "" for key in ("host", "client", "name")
        )
        pid = fields.get("pid")
        return cls(host, pid if type(pid) is int and pid > 0 else 0, client, name)

    def encode(self) -> bytes:
        """Encode the host, the process and the name, if there is one."""
        named = {"name": self.name} if self.name else {}
        return json.dumps({"host": self.host, "pid": self.pid, **named}).encode()
