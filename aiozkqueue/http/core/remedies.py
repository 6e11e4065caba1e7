"""The texts of errors for clients of the service and visitors of the dashboard, who cannot follow a remedy in Python.

The package states remedies for its callers: arguments and methods. Each is replaced here by what can be done over HTTP
or on the dashboard. `tests/http/test_remedies.py` finds texts that still have one.
"""

from __future__ import annotations

import re
from typing import Final

#: Remedies in Python as patterns, each with its replacement; the first that begins at a place counts.
_REMEDIES: Final = (
    ("; use a longer timeout, or take messages first", "; put it again when messages have been taken"),
    ("; use a longer timeout", "; put it again later"),
    (", or delete it with force=True", " first"),
    ('; cancel or update it, or use unique="ignore" to keep it', "; cancel that message, or wait until it has ended"),
    ('; put one of them, or use unique="ignore" to leave out the later one', "; put one of them"),
    ("; leave (?:delay= and at=|priority=) out", "; use another queue"),
    ("; put without group=, or to another queue", "; use another queue"),
    (", or put with group= instead", ""),
    ("; leave bundle= out, or turn", "; turn"),
    ("; leave the policy out, or change it for all with `await [^`]*` or ", "; change it for all with "),
    (
        r"; whether it was applied is not known yet; `await session\.outcome[^;]*",
        "; it may have been applied: check the current state before you repeat it",
    ),
    (
        r"give connect\(\) an acl with schemes and ids that the servers support",
        "have the operator of this service choose an ACL that the ZooKeeper servers support",
    ),
    (r"(?<=\bordered)=True|(?<=\bcollapse)=True|(?<=\baffinity)='producer'", ""),
)
_ANY: Final = re.compile("|".join(f"({pattern})" for pattern, _ in _REMEDIES))


def text_of(error: Exception | str) -> str:
    """Return the text of an error with remedies that can be followed without Python."""
    return _ANY.sub(_replacement, str(error))


def _replacement(found: re.Match[str]) -> str:
    return _REMEDIES[(found.lastindex or 1) - 1][1]
