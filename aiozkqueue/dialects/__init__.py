"""Other programs' layouts of a queue: how Curator and kazoo name, lock and write what they put.

Pure, like `layout`: no I/O, no clock. A `Dialect` says which children of a znode are items, in which order and from
when they may be taken, where each one's lock lies, and how messages become a znode's bytes and back. The queue's own
machinery does the rest (`queue.foreign`), so that a further dialect is a module here and nothing else. Imports `layout`
and `errors`.
"""

from __future__ import annotations

from .curator import CuratorKind, curator
from .described import described
from .dialect import Dialect, PutNames, check_path
from .kazoo import kazoo
from .paths import ForeignPaths

__all__ = ["CuratorKind", "Dialect", "ForeignPaths", "PutNames", "check_path", "curator", "described", "kazoo"]
