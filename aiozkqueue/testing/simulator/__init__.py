"""A ZooKeeper ensemble in memory, on a virtual clock, with a schedule of faults: one seed is one history.

- `loop` is the virtual clock, and processes that can be paused; `tree` the znodes of one server, pure.
- `ensemble` is what the servers agree on: sessions, the order of the writes, elections; `server` is one of them, with
  its connections and watches; `requests` is what travels, and how.
- `connection` and `client` are the package's own ZooKeeper client with its sockets replaced.
- `cluster` puts them together: `simulated`.

What it leaves out: ACLs, chroots, and the collection of container znodes.
"""

from __future__ import annotations

from .client import SimulatedClient
from .cluster import Cluster, simulated
from .ensemble import Ensemble
from .loop import LoopClock, Process, StuckError, VirtualLoop, run_virtual
from .requests import Delays, Fault, Kind, Request

__all__ = [
    "Cluster",
    "Delays",
    "Ensemble",
    "Fault",
    "Kind",
    "LoopClock",
    "Process",
    "Request",
    "SimulatedClient",
    "StuckError",
    "VirtualLoop",
    "run_virtual",
    "simulated",
]
