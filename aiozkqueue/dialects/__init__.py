"""The queue layouts of Curator and kazoo: the names, locks and bytes of their items.

Pure, like `layout`: no I/O, no clock. A `Dialect` defines which children of a znode are items, the order and the time
in which they may be taken, the path of each lock, and the conversion between messages and a znode's bytes. The queue
itself does the rest (`foreign.queue_state`), so another dialect is only one more module here. Imports `layout` and
`errors`.
"""

from __future__ import annotations

from .curator import CuratorKind, curator
from .described import described
from .dialect import Dialect, PutNames, check_path
from .kazoo import kazoo
from .paths import ForeignPaths

__all__ = ["CuratorKind", "Dialect", "ForeignPaths", "PutNames", "check_path", "curator", "described", "kazoo"]
