"""A commit is refused as a whole if the claim on one of its messages is lost, however it ends that message."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

import aiozkqueue as zq
from aiozkqueue.queue.commit.dispositions import Disposition
from aiozkqueue.session.internals import work_of
from aiozkqueue.testing import run_virtual, simulated

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.testing.simulator import Cluster

    Loss = Callable[["Lost"], Awaitable[object]]
    Ending = Callable[[zq.Transaction, zq.Message[bytes]], None]

#: Seconds that a take waits.
WAIT: Final = 5


@dataclass(frozen=True)
class Kind:
    """A kind of message."""

    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    filters: zq.Filter | None = None
    foreign: str = ""
    """The program whose queue it is."""

    def queue(self, session: zq.QueueSession, policy: zq.Policy) -> zq.Queue[bytes]:
        """Return the queue, as this session uses it."""
        if self.foreign == "curator":
            return session.curator_queue("/jobs", lock_path="/jobs-locks", policy=policy)
        return session.kazoo_queue("/jobs", policy=policy) if self.foreign == "kazoo" else session.queue("jobs")

    async def put(self, queue: zq.Queue[bytes]) -> None:
        """Put two messages; in a bundle, if the queue has bundles."""
        if self.options:
            await queue.put(b"1", **self.options)
            await queue.put(b"2", **self.options)
        else:
            await queue.put_many([b"1", b"2"])

    async def take(self, tx: zq.Transaction, queue: zq.Queue[bytes]) -> zq.Message[bytes]:
        """Take a message."""
        options: dict[str, Any] = {} if self.filters is None else {"filters": self.filters}
        message = await tx.take(queue, timeout=WAIT, **options)
        assert message is not None
        return message


class Lost(NamedTuple):
    """A message whose claim is to be lost."""

    cluster: Cluster
    queue: zq.Queue[bytes]
    """Its queue, as an operator uses it."""
    message: zq.Message[bytes]


#: Those with the most ways of ending come first.
KINDS: Final = {
    "single": Kind({"bundle": 1}),
    "bundled": Kind({"bundle": 2}),
    "grouped": Kind(options={"group": "g"}),
    "ordered": Kind({"ordered": True}),
    "recorded": Kind({"bundle": 2, "history": zq.History()}),
    "unique": Kind(options={"unique": True}),
    "expiring": Kind(options={"ttl": 600}),
    "filtered": Kind(options={"tags": {"kind": "a"}}, filters=zq.Filter("kind", "eq", "a")),
    "urgent": Kind(options={"priority": -5}),
    "scheduled": Kind(options={"delay": 1}),
    "collapsing": Kind({"collapse": True}),
    "sticky": Kind({"affinity": "producer"}),
    "curator": Kind(foreign="curator"),
    "kazoo": Kind(foreign="kazoo"),
}
ENDINGS: Final[dict[str, Ending]] = {
    "consumed": lambda _, __: None,
    "rejected": lambda tx, message: tx.reject(message, "bad"),
    "released": lambda tx, message: tx.release(message),
    "released with a delay": lambda tx, message: tx.release(message, delay=60),
    "leased": lambda tx, message: work_of(tx).end(
        message.queue, message.id, Disposition("release", delay=60.0, leased=True)
    ),
}


async def release_by_force(lost: Lost) -> None:
    """Release all claims of the queue."""
    assert await lost.queue.admin.release_claims() > 0


async def delete(lost: Lost) -> None:
    """Delete the queue."""
    await lost.queue.admin.delete(force=True)


async def create_again(lost: Lost) -> None:
    """Delete the queue, and create it again with other messages."""
    settings = await lost.queue.configuration()
    if settings.ordered or settings.collapse or settings.affinity == "producer":
        settings = replace(settings, bundle=None)
    await lost.queue.admin.delete(force=True)
    await lost.queue.configure(settings)
    await lost.queue.put_many([b"3", b"4"])


async def cancel(lost: Lost) -> None:
    """Cancel the message."""
    assert await lost.queue.cancel(id=lost.message.id, running=True)
    await asyncio.sleep(0.01)  # a history has one record of a message in a millisecond


async def expire(lost: Lost) -> None:
    """End the ZooKeeper session of the holder."""
    lost.cluster.expire("holder")


LOSSES: Final[dict[str, Loss]] = {
    "released by force": release_by_force,
    "deleted": delete,
    "deleted and created again": create_again,
    "cancelled": cancel,
    "session expired": expire,
}


class Taken(NamedTuple):
    """How often the message was taken before, and whether the transaction takes another one too."""

    policy: zq.Policy
    before: int
    both: bool


UNCOUNTED: Final = zq.AtLeastOnce(backoff=zq.Fixed(0))
COUNTED: Final = zq.ConsumeTimes(5, backoff=zq.Fixed(0))
TAKEN: Final = [Taken(COUNTED, 1, both=False), Taken(UNCOUNTED, 0, both=False)]
MORE: Final = [Taken(COUNTED, 0, both=True), Taken(UNCOUNTED, 1, both=True), Taken(zq.ConsumeOnce(), 0, both=False)]


async def commit_after(lose: Loss, kind: Kind, end: Ending, taken: Taken) -> type[zq.QueueError] | None:
    """Return the error of a commit whose claim is lost; None if there was none. Nothing of it may be stored."""
    async with simulated() as cluster, cluster.connect() as operator, cluster.connect(name="holder") as holder:
        queue, mine = kind.queue(operator, taken.policy), kind.queue(holder, taken.policy)
        if not kind.foreign:
            await queue.configure(zq.QueueConfig(policy=taken.policy, **kind.settings))
        await kind.put(queue)
        for _ in range(taken.before):
            async with holder.transaction() as tx:
                tx.release(await kind.take(tx, mine))
        error: type[zq.QueueError] | None = None
        async with holder.transaction(autocommit=False) as tx:
            message = await kind.take(tx, mine)
            end(tx, message)
            if taken.both:
                end(tx, await kind.take(tx, mine))
            tx.put("seen", message.body)
            await lose(Lost(cluster, queue, message))
            try:
                await tx.commit()
            except zq.QueueError as refused:
                error = type(refused)
        assert await operator.queue("seen").size() == (error is None)
        return error


@pytest.mark.parametrize("kind", KINDS)
def test_a_commit_is_refused_if_a_claim_of_it_is_lost(kind: str) -> None:
    losses, taken = list(LOSSES), [*TAKEN, *MORE]
    if KINDS[kind].foreign:
        losses, taken = losses[:1], TAKEN  # the others are for our own queues, or for any queue
    elif kind not in list(KINDS)[:3]:
        losses, taken = losses[:3:2], TAKEN
    for loss, ending, how in product(losses, ENDINGS, taken):
        expected = zq.SessionExpiredError if loss == "session expired" else zq.ClaimLostError
        error = run_virtual(lambda: commit_after(LOSSES[loss], KINDS[kind], ENDINGS[ending], how), limit=1000)  # noqa: B023 - called at once
        assert error is expected, (loss, ending, how)
