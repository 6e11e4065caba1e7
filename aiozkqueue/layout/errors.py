"""The error raised for malformed stored data.

MalformedError (ValueError)   bytes or a name found in ZooKeeper violate the format
"""

from __future__ import annotations


class MalformedError(ValueError):
    """Stored bytes or a name violate the format: another program wrote them, or they are damaged."""
