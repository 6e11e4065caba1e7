"""The error for a peer that cannot be measured on this machine."""

from __future__ import annotations


class AbsentError(Exception):
    """A peer is not available; the text says what is missing and how to install it."""
