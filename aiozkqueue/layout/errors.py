"""What reading stored data can raise.

MalformedError (ValueError)   bytes or a name found in ZooKeeper are not what the format says
"""

from __future__ import annotations


class MalformedError(ValueError):
    """Stored bytes, or a name, are not what the format says: another program wrote them, or they were damaged."""
