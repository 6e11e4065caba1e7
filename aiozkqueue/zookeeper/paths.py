"""Paths of znodes."""

from __future__ import annotations


def parent_of(path: str) -> str:
    """Return the path of a znode's parent."""
    return path.rpartition("/")[0] or "/"


def parted(path: str) -> tuple[str, str]:
    """Return the path of a znode's parent and the znode's name; the parent is "" if it is the root."""
    parent, _, name = path.rpartition("/")
    return parent, name
