"""The tools of a history's programs: random actions, and records of their results."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import aiozkqueue as zq
from tests.simulation.history import Delivery, History, Status, Unit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from random import Random


class HandlerError(Exception):
    """The error that a handler raises on purpose."""


class Recorder:
    """One history during its run."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.history = History()
        self.loop = asyncio.get_running_loop()
        self.queues: list[str] = []
        self.spared: set[str] = set()
        """Queues that operators do not change."""
        self._tokens = 0

    def policy(self) -> zq.Policy:
        """Choose a policy at random."""
        random = self.random
        backoff = random.choice([zq.Fixed(0), zq.Fixed(0.3), zq.Exponential(0.1, 2, 1)])
        return random.choice(
            [
                zq.AtLeastOnce(backoff=backoff),
                zq.ConsumeTimes(random.randint(2, 4), backoff=backoff),
                zq.ConsumeTimes(2, backoff=backoff, exhausted="drop"),
                zq.ConsumeOnce(),
            ]
        )

    async def configure(self, session: zq.QueueSession, name: str, config: zq.QueueConfig) -> None:
        """Create a queue of this history, or change its policy."""
        policy = config.policy
        limits, strictest = self.history.limits, self.history.strictest
        if name not in self.queues:
            self.queues.append(name)
            limits[name] = None if policy is None else policy.limit
        if policy is not None:
            most = limits[name]
            limits[name] = None if most is None or policy.limit is None else max(most, policy.limit)
            if policy.limit is not None:
                strictest[name] = min(strictest.get(name, policy.limit), policy.limit)
            if policy.exhausted == "drop":
                self.history.drops.add(name)
        await session.queue(name).configure(config)

    def token(self) -> str:
        self._tokens += 1
        return f"m{self._tokens}"

    @asynccontextmanager
    async def outcome_of(self, unit: Unit) -> AsyncIterator[None]:
        """Record the outcome of a unit by the error of the block.

        A block that ends without an error records the outcome itself.
        """
        try:
            yield
        except zq.NotCommittedError as error:
            self.decide(unit, Status.NOT_COMMITTED, repr(error))
        except zq.OutcomeUnknownError as error:
            self.decide(unit, Status.UNKNOWN, repr(error))
        except zq.SessionClosedError as error:
            unit.why = repr(error)
        except zq.ConnectionLostError as error:  # raised by a take, before anything is sent for the commit
            self.decide(unit, Status.NOT_COMMITTED, repr(error))
        except HandlerError:
            self.decide(unit, Status.NOT_COMMITTED)
        finally:
            self.release_unseen(unit)

    def decide(self, unit: Unit, status: Status, why: str = "") -> None:
        unit.status, unit.why, unit.decided = status, why, self.loop.time()

    def release_unseen(self, unit: Unit) -> None:
        for delivery in unit.takes:
            if delivery.until is None:
                delivery.until = self.loop.time()

    def show(self, unit: Unit, client: str, session: zq.QueueSession, message: zq.Message[bytes]) -> str:
        token = message.value.decode()
        unit.takes.append(
            Delivery(token, message.queue, client, session._runtime.zookeeper.session_id, self.loop.time())
        )
        return token

    def unit(self, client: str) -> Unit:
        unit = Unit(client)
        self.history.units.append(unit)
        return unit

    async def perhaps_cancelled(self, what: Any) -> bool:
        """Run a part of a program, and sometimes cancel it; return whether it was cancelled."""
        random = self.random
        task = asyncio.ensure_future(what)
        if random.random() >= 0.15:
            await task
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout(random.random() * random.choice([0.003, 0.05, 2])) as timeout:
                await task
        return timeout.expired()


STATUS = {
    zq.Outcome.COMMITTED: Status.COMMITTED,
    zq.Outcome.ROLLED_BACK: Status.NOT_COMMITTED,
    zq.Outcome.UNKNOWN: Status.UNKNOWN,
    zq.Outcome.OPEN: Status.PENDING,
}
