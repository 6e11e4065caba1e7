"""The parts of `aiozkqueue worker`: services found by name, and the endpoint that reports their health.

`target` turns ``module:name`` into services, `health` answers ``/live``, ``/ready`` and ``/metrics``, `stacks` tells
where handlers wait, `dumps` asks for that, `reload` runs it again when files change, `heap` spares it searches for
garbage, `starting` logs what is begun. On the public API alone.
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
