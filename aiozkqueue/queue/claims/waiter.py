"""One who waits in line for claims."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from aiozkqueue.errors import QueueError
    from aiozkqueue.queue.claim import Claim


class Waiter:
    """One taker: wants up to ``limit`` claims, of one ZooKeeper session if it has some of it already.

    It is answered when it has them all, or when the batches have landed that flew when it got its first: they bring
    what is next in order, and find nobody in line for it if it has gone. What it gets is in the order of their launch.
    """

    __slots__ = ("_parts", "arrival", "awaited", "count", "future", "generation", "limit", "owner", "patient")

    def __init__(
        self,
        limit: int,
        generation: int | None,
        arrival: int,
        *,
        patient: bool,
        loop: asyncio.AbstractEventLoop,
        owner: object = None,
    ) -> None:
        self.owner = owner
        """The transaction that takes, which may have several messages of a group; None: a consumer or listener."""
        self.limit = limit
        self.generation = generation
        self.patient = patient
        self.arrival = arrival
        self.count = 0
        """How many claims there are for it so far."""
        self._parts: list[tuple[int, list[Claim]]] = []
        self.awaited: set[int] = set()
        """The batches that it waits for."""
        self.future: asyncio.Future[list[Claim]] = loop.create_future()

    @property
    def over(self) -> bool:
        """Whether it has been answered, or has gone."""
        return self.future.done()

    @property
    def missing(self) -> int:
        """How many more it wants."""
        return self.limit - self.count

    @property
    def claims(self) -> list[Claim]:
        """What there is for it so far, in order."""
        if len(self._parts) == 1:
            return self._parts[0][1]
        return [claim for _, part in sorted(self._parts, key=lambda part: part[0]) for claim in part]

    def give(self, flight: int, claims: list[Claim]) -> None:
        """Keep what a batch has brought for it."""
        self._parts.append((flight, claims))
        self.count += len(claims)

    def is_of_another(self, generation: int) -> bool:
        """Whether what there is for it is of another ZooKeeper session."""
        return self.count > 0 and self._parts[0][1][0].generation != generation

    def answer(self) -> None:
        """Hand over what there is for it."""
        self.future.set_result(self.claims)

    def fail(self, error: QueueError) -> None:
        """Tell it what waiting cannot cure; what there is for it is handed over first."""
        if self.count:
            self.answer()
        else:
            self.future.set_exception(error)
