"""What `aiozkqueue worker` is made of: a user's services found by name, and the endpoint that tells how they are.

`target` turns ``module:name`` into services, `health` answers ``/live`` and ``/ready``, `stacks` tells where handlers
wait. On the public API alone.
"""

from __future__ import annotations

from .health import Health
from .stacks import dump, dumping
from .target import load, opened, type_of_deliveries

__all__ = ["Health", "dump", "dumping", "load", "opened", "type_of_deliveries"]
