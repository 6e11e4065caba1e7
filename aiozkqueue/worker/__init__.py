"""The parts of `aiozkqueue worker`: services found by name, and the endpoint that reports their health.

`target` turns ``module:name`` into services, `health` answers ``/live``, ``/ready`` and ``/metrics``, `stacks`
describes where handlers wait, `dumps` requests that, `reload` restarts the worker when files change, `heap` reduces
garbage collection, and `starting` logs the listeners. All of it uses the public API only.
"""

from __future__ import annotations

from .dumps import ask
from .health import Health
from .heap import settled_heap
from .reload import reloading
from .stacks import dump, dumping
from .starting import announce
from .target import load, opened, type_of_deliveries

__all__ = [
    "Health",
    "announce",
    "ask",
    "dump",
    "dumping",
    "load",
    "opened",
    "reloading",
    "settled_heap",
    "type_of_deliveries",
]
