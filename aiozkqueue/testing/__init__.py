"""Test tools: a real ZooKeeper without Docker, one in memory, a fault proxy, assertions and recorded deliveries.

The plugin `pytest_aiozkqueue`, part of this package, has the fixtures; use this module for tests that need more.
Names are loaded on first use because few tests need all of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiozkqueue.runtime.clock import Clock
    from aiozkqueue.testing.assertions import assert_dead_lettered, assert_empty, assert_put
    from aiozkqueue.testing.certificates import Certificates, make_certificates
    from aiozkqueue.testing.clock import TestClock
    from aiozkqueue.testing.configuration import ServerOptions, ServerTls
    from aiozkqueue.testing.frames import Fault, Opcode, Request, ZooKeeperProxy
    from aiozkqueue.testing.node import EmbeddedNode
    from aiozkqueue.testing.proxy import Direction, FaultProxy
    from aiozkqueue.testing.queue_server import QueueServer
    from aiozkqueue.testing.recorded import MessageFields, Put, RecordedDelivery, delivery, handle, queue
    from aiozkqueue.testing.runtime import ServerUnavailableError
    from aiozkqueue.testing.server import EmbeddedEnsemble, EmbeddedZooKeeper
    from aiozkqueue.testing.simulator import Cluster, run_virtual, simulated

__all__ = [
    "Certificates",
    "Clock",
    "Cluster",
    "Direction",
    "EmbeddedEnsemble",
    "EmbeddedNode",
    "EmbeddedZooKeeper",
    "Fault",
    "FaultProxy",
    "MessageFields",
    "Opcode",
    "Put",
    "QueueServer",
    "RecordedDelivery",
    "Request",
    "ServerOptions",
    "ServerTls",
    "ServerUnavailableError",
    "TestClock",
    "ZooKeeperProxy",
    "assert_dead_lettered",
    "assert_empty",
    "assert_put",
    "delivery",
    "handle",
    "make_certificates",
    "queue",
    "run_virtual",
    "simulated",
]

_MODULES = {
    "assertions": ["assert_dead_lettered", "assert_empty", "assert_put"],
    "certificates": ["Certificates", "make_certificates"],
    "clock": ["Clock", "TestClock"],
    "configuration": ["ServerOptions", "ServerTls"],
    "frames": ["Fault", "Opcode", "Request", "ZooKeeperProxy"],
    "node": ["EmbeddedNode"],
    "proxy": ["Direction", "FaultProxy"],
    "queue_server": ["QueueServer"],
    "recorded": ["MessageFields", "Put", "RecordedDelivery", "delivery", "handle", "queue"],
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
