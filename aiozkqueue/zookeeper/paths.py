"""Paths of znodes."""

from __future__ import annotations


def parent_of(path: str) -> str:
    """Return the path of a znode's parent."""
    return path.rpartition("/")[0] or "/"
