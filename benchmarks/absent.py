"""What is said when a peer cannot be measured here."""

from __future__ import annotations


class AbsentError(Exception):
    """A peer is not here; the text says what is missing and how to get it."""
