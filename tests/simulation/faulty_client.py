"""A session with a fault at one request, which is chosen by its number. Its ZooKeeper session may also end there."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aiozkqueue.testing.simulator import simulated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import aiozkqueue as zq
    from aiozkqueue.testing.simulator import Cluster, Ensemble, Fault, Request
    from aiozkqueue.testing.simulator.server import ServerConnection

SESSION_TIMEOUT = 6.0
#: The name of the client with the fault. Other clients are not affected.
FAULTY = "struck"


@dataclass
class Result:
    """The result of one run."""

    requests: int = 0
    trouble: list[str] = field(default_factory=list)

    def inject(self, ensemble: Ensemble, number: int, fault: Fault | None) -> None:
        """Count further requests, and inject a fault into one; without a fault, end its ZooKeeper session there."""

        def judge(connection: ServerConnection, _: Request) -> Fault | None:
            if connection.client.name != FAULTY:
                return None
            self.requests += 1
            if self.requests != number:
                return None
            if fault is None:
                ensemble.expire(connection.session.id)
            return fault

        ensemble.judge = judge


def stop_faults(ensemble: Ensemble) -> None:
    """Inject no more faults."""
    ensemble.judge = lambda *_: None


@asynccontextmanager
async def cluster_with_session(servers: int) -> AsyncIterator[tuple[Cluster, zq.QueueSession]]:
    """Yield servers that are a millisecond away and end sessions within a tick, and a session without faults."""
    async with simulated(servers=servers) as cluster, cluster.connect(session_timeout=SESSION_TIMEOUT) as other:
        cluster.ensemble.tick = 0.1
        cluster.ensemble.delays.lingering = lambda: 0.5
        cluster.ensemble.delays.network = lambda: 0.001
        yield cluster, other
