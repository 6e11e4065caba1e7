"""For tests: a real ZooKeeper without Docker, one in memory, a misbehaving proxy, fixtures, recorded deliveries.

The fixtures come with the package (see `aiozkqueue.testing.plugin`); what is here is for tests that need more.
Names are loaded when first used: the plugin is imported in every pytest run of everybody who has this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiozkqueue.testing.certificates import Certificates, make_certificates
    from aiozkqueue.testing.clock import TestClock
    from aiozkqueue.testing.configuration import ServerOptions, ServerTls
    from aiozkqueue.testing.frames import Fault, Opcode, Request, ZooKeeperProxy
    from aiozkqueue.testing.node import EmbeddedNode
    from aiozkqueue.testing.proxy import Direction, FaultProxy
    from aiozkqueue.testing.recorded import Put, RecordedDelivery, delivery, handle, queue
    from aiozkqueue.testing.runtime import ServerUnavailableError
    from aiozkqueue.testing.server import EmbeddedEnsemble, EmbeddedZooKeeper
    from aiozkqueue.testing.simulator import Cluster, run_virtual, simulated

__all__ = [
    "Certificates",
    "Cluster",
    "Direction",
    "EmbeddedEnsemble",
    "EmbeddedNode",
    "EmbeddedZooKeeper",
    "Fault",
    "FaultProxy",
    "Opcode",
    "Put",
    "RecordedDelivery",
    "Request",
    "ServerOptions",
    "ServerTls",
    "ServerUnavailableError",
    "TestClock",
    "ZooKeeperProxy",
    "delivery",
    "handle",
    "make_certificates",
    "queue",
    "run_virtual",
    "simulated",
]

_MODULES = {
    "certificates": ["Certificates", "make_certificates"],
    "clock": ["TestClock"],
    "configuration": ["ServerOptions", "ServerTls"],
    "frames": ["Fault", "Opcode", "Request", "ZooKeeperProxy"],
    "node": ["EmbeddedNode"],
    "proxy": ["Direction", "FaultProxy"],
    "recorded": ["Put", "RecordedDelivery", "delivery", "handle", "queue"],
    "runtime": ["ServerUnavailableError"],
    "server": ["EmbeddedEnsemble", "EmbeddedZooKeeper"],
    "simulator": ["Cluster", "run_virtual", "simulated"],
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        text = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(text)
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
