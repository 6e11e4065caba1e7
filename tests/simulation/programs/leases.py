"""Leases that are taken, renewed, acknowledged in time or too late, or that end.

A token names a message, so ``renew(lifetime=0)`` ends whichever lease exists on it. A client whose own lease has
already ended thus ends the lease of another client; `Released` records these calls.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiozkqueue as zq
from tests.simulation.history import Delivery, Status
from tests.simulation.programs import Feature, join

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiozkqueue.testing.simulator.tree import Znode
    from tests.simulation.history import Unit
    from tests.simulation.recorder import Recorder

LEASED = "leased"
#: A lease does not belong to a ZooKeeper session.
NOBODYS = -1


@dataclass
class Released:
    """The calls that end the lease on a message, regardless of its holder."""

    calls: defaultdict[str, list[list[float]]] = field(default_factory=lambda: defaultdict(list))
    """By token of the message, the start and the end of each call; infinity if it may still be applied later."""
    taken: dict[Delivery, float] = field(default_factory=dict)
    """The earliest start of each lease, since the answer may arrive later."""

    def may_have_ended(self, delivery: Delivery) -> bool:
        """Whether a call so far may have ended this lease."""
        return any(ended >= self.taken[delivery] for _, ended in self.calls[delivery.token])


async def prepare(run: Recorder, session: zq.QueueSession) -> None:
    await run.configure(session, LEASED, zq.QueueConfig(policy=zq.AtLeastOnce(backoff=zq.Fixed(0))))
    run.spared.add(LEASED)  # an acknowledgement removes the message even after a forced release


async def put(run: Recorder, client: str, session: zq.QueueSession) -> None:
    for _ in range(run.random.randint(3, 8)):
        await asyncio.sleep(run.random.random() * run.random.choice([0, 0.05, 0.5]))
        unit, token = run.unit(client), run.token()
        unit.puts = {token: LEASED}
        async with run.outcome_of(unit):
            await session.queue(LEASED).put(token.encode())
            run.decide(unit, Status.COMMITTED)


async def lease(run: Recorder, client: str, session: zq.QueueSession) -> None:
    random, leases = run.random, session.queue(LEASED).leases
    for _ in range(random.randint(2, 6)):
        lifetime = random.choice([0.3, 1, 2])
        began = run.loop.time()
        try:
            taken = await leases.take(random.choice([1, 3]), lifetime=lifetime, timeout=random.random())
        except (zq.NotCommittedError, zq.OutcomeUnknownError, zq.ConnectionLostError):
            continue
        for held_lease in taken:
            end = began + lifetime  # the lease begins later than this
            if run.loop.time() >= end:
                continue  # another client may hold the message by now
            unit = run.unit(client)
            delivery = Delivery(held_lease.value.decode(), LEASED, client, NOBODYS, run.loop.time(), end)
            unit.takes.append(delivery)
            run.history.part(Released).taken[delivery] = began
            await _handle(run, unit, delivery, held_lease, session.queue(LEASED).leases, end)


async def _handle(
    run: Recorder, unit: Unit, delivery: Delivery, held_lease: zq.Lease[bytes], leases: zq.Leases[bytes], end: float
) -> None:
    random = run.random
    await asyncio.sleep(random.random() * random.choice([0, 0.1, 0.5]))
    try:
        if random.random() < 0.3 and run.loop.time() < end:
            began = run.loop.time()
            await leases.renew([held_lease.token], lifetime=1)
            if run.loop.time() < end:  # otherwise another client may have held the message in between
                delivery.until = end = max(end, began + 1)
        delivery.until = min(end, run.loop.time())
        what = random.random()
        if what < 0.6:
            unit.status = Status.UNKNOWN  # another client may hold and end the message
            await leases.acknowledge([held_lease.token])
            if run.loop.time() < end and not run.history.part(Released).may_have_ended(delivery):
                run.decide(unit, Status.COMMITTED)
        elif what < 0.8:
            call = [run.loop.time(), float("inf")]
            run.history.part(Released).calls[delivery.token].append(call)
            await leases.renew([held_lease.token], lifetime=0)
            call[1] = run.loop.time()
            run.decide(unit, Status.NOT_COMMITTED)
        else:
            delivery.until = end
            run.decide(unit, Status.NOT_COMMITTED)
    except (zq.NotCommittedError, zq.OutcomeUnknownError) as error:
        unit.why = repr(error)


def finish(run: Recorder, _: Mapping[str, Znode]) -> None:
    """Shorten the holds that a call of another client may have ended."""
    released = run.history.part(Released)
    for delivery, taken in released.taken.items():
        for began, ended in released.calls[delivery.token]:
            if delivery.until is not None and taken <= ended and began < delivery.until:
                delivery.until = max(delivery.at, began)


join(Feature("leases", prepare, [put, put, lease, lease], finish=finish))
