"""Paths of znodes."""

from __future__ import annotations


def parent_of(path: str) -> str:
    """Return the path of a znode's parent."""
    return path.rpartition("/")[0] or "/"


def folder_and_name(path: str) -> tuple[str, str]:
    """Split a znode's path at its last slash; the folder of a znode below the root is empty."""
    folder, _, name = path.rpartition("/")
    return folder, name
