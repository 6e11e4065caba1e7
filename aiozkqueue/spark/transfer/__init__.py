"""Files into queues, and queues into files.

`load` reads Parquet, CSV and JSON lines into a queue. `unload` moves a queue's messages to Parquet files, and
acknowledges them only after they have been written. Both use the format ``aiozkqueue``. The commands are in `cli/`.
"""

from __future__ import annotations

from .load import Kind, load
from .unload import Unloaded, unload

__all__ = ["Kind", "Unloaded", "load", "unload"]
