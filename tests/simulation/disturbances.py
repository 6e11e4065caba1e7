"""Random faults and delays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.testing.simulator import Fault, Kind

if TYPE_CHECKING:
    from random import Random

    from aiozkqueue.testing.simulator import Request
    from aiozkqueue.testing.simulator.server import ServerConnection

SESSION_TIMEOUT = 4.0


class Disturbances:
    """The random faults and delays of one history, whose frequency is also random."""

    def __init__(self, random: Random, reads: Random) -> None:
        self._random = random
        self._reads = reads
        self.level = random.choice([0.0, 0.01, 0.03, 0.08, 0.15])
        self.calm = False
        self._kinds = random.choices(list(Fault), k=3)
        self._spikes = random.choice([0.0, 0.0, 0.005, 0.03])
        self.scale = random.choice([0.0005, 0.002, 0.02])
        self._at_once = reads.choice([0.0, 0.2, 0.7])

    def judge(self, _: ServerConnection, request: Request) -> Fault | None:
        """Return the fault of a request."""
        if self.calm or self._random.random() >= self.level or request.kind is Kind.CLOSE:
            return None
        return self._random.choice(self._kinds)

    def delay(self) -> float:
        """Return the delay of a network message."""
        random = self._random.random
        if self._spikes and not self.calm and random() < self._spikes:
            return random() * SESSION_TIMEOUT
        return random() * self.scale

    def together(self) -> bool:
        """Return whether a client reads the next reply or event together with the previous one."""
        return self._reads.random() < self._at_once

    def lingering(self) -> float:
        """Return the delay of a late request."""
        return self._random.random() * self._random.choice([0.01, 0.3, 6.0])


def has_a_slot(request: Request) -> bool:
    """Return whether a request has a commit slot, which works even if requests of one session arrive out of order."""
    return bool(request.argument) and "/slot-" in request.argument[0].path
