"""The parts of `aiozkqueue worker`: services found by name, and the endpoint that reports their health.

`target` turns ``module:name`` into services, `health` answers ``/live``, ``/ready`` and ``/metrics``, `stacks`
describes where handlers wait, `dumps` requests that, `reload` restarts the worker when files change, `processes` runs
several, `stops` handles the signals that stop them, `idle` ends a worker without messages, `heap` reduces garbage
collection, and `starting` logs the start and the end of each service. Spark's readers and writers use `heap` too.
"""

from __future__ import annotations

from .dumps import ask
from .health import Health
from .heap import settled_heap
from .idle import UntilIdle
from .processes import supervise
from .reload import reloading
from .stacks import dump, dumping
from .starting import Announced
from .stops import Stops, stop_signals
from .target import UserCodeError, load, opened, type_of_deliveries

__all__ = [
    "Announced",
    "Health",
    "Stops",
    "UntilIdle",
    "UserCodeError",
    "ask",
    "dump",
    "dumping",
    "load",
    "opened",
    "reloading",
    "settled_heap",
    "stop_signals",
    "supervise",
    "type_of_deliveries",
]
