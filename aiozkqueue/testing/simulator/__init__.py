"""A ZooKeeper ensemble in memory, on a virtual clock, with a schedule of faults: one seed gives one history.

- `loop` has the virtual clock, and processes that can be paused; `tree` has the znodes of one server, pure.
- `ensemble` is the state that the servers share: sessions, the order of the writes, elections. `server` is one of them,
  with its connections and watches. `requests` has the messages and their transport.
- `connection` and `client` are the package's own ZooKeeper client with its sockets replaced.
- `cluster` combines them: `simulated`.

Not simulated: ACLs, chroots, and the deletion of empty container znodes.
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
