"""The registry of a queue's consumers: an ephemeral znode for each ZooKeeper session that consumes it.

Idle consumers watch it, since a session that ends there frees its locks without a write to the items. Every consumer
derives its share of the items from it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from aiozkqueue.layout import condition_digest
from aiozkqueue.queue.candidates.partition import Partition
from aiozkqueue.zookeeper import (
    PAGE,
    Create,
    Delete,
    MultiError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    SetData,
    Stat,
    ZooKeeperError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiozkqueue.layout import Condition

    from .services import ClaimServices


log: Final = logging.getLogger(__name__)

#: Entries checked after one listing: a queue has fewer consumers, and a listing must not wait for many more.
MOST_UNKNOWN: Final = 1000


class Registration:
    """One session's entry, created again in each ZooKeeper session. ``about`` is its data."""

    def __init__(self, services: ClaimServices, condition: Condition | None) -> None:
        self._zookeeper = services.zookeeper
        self._paths = services.state.paths
        self._client = services.ids.client
        self._about = services.about
        self._budgets = services.budgets
        self._clock = services.server_clock
        self._class = "" if condition is None else f"-f{condition_digest(condition)}"
        self.generation: int = 0
        """The ZooKeeper session with an entry; 0: none."""
        self._live: dict[str, bool] = {}  # by entry

    async def ensure(self, generation: int) -> bool:
        """Register in this ZooKeeper session, unless already done; False: the queue must be opened again.

        Raises: SessionExpiredError, ConnectionLossError, MultiError of the zookeeper package.
        """
        if self.generation == generation:
            return True
        path, sent = self._paths.consumer(self._name(generation)), self._clock.local()
        try:
            results = await self._zookeeper.multi(
                [Create(path, ephemeral=True), SetData(path, self._about)], generation=generation
            )
        except MultiError as error:
            if isinstance(error.error, NoNodeError):
                return False
            if not isinstance(error.error, NodeExistsError):  # an earlier copy of this request, whose reply was lost
                raise
        else:
            self._observe(results[1], sent)
        self._budgets.of(generation).spend(self._size(self._name(generation)))
        self.generation = generation
        return True

    def forget(self) -> None:
        """Record that the entry is gone, because the queue was deleted."""
        if self.generation:
            self._budgets.of(self.generation).free(self._size(self._name(self.generation)))
            self.generation = 0

    async def end(self) -> None:
        """Remove the entry, unless the session that made it has ended. Without a connection, it stays until then."""
        generation, self.generation = self.generation, 0
        name = self._name(generation)
        if not generation:
            return
        try:
            await self._zookeeper.multi([Delete(self._paths.consumer(name))], generation=generation)
        except ZooKeeperError as error:
            log.debug("entry %s: %s", name, error, extra={"queue": self._paths.name})
            if not (isinstance(error, MultiError) and isinstance(error.error, NoNodeError)):
                return  # otherwise the queue was deleted, and the entry with it
        self._budgets.of(generation).free(self._size(name))

    async def sample_clock(self, generation: int, within: float) -> None:
        """Learn ZooKeeper's time by a write, unless the current leader's was measured in the last seconds."""
        if not self._clock.sampled_within(within) and self.generation == generation:
            path = self._paths.consumer(self._name(generation))
            sent = self._clock.local()
            try:
                results = await self._zookeeper.multi([SetData(path, self._about)], generation=generation)
            except MultiError as error:
                if isinstance(error.error, NoNodeError):
                    self.forget()  # the queue was deleted and created again, so `ensure` makes another entry
                raise
            self._observe(results[0], sent)

    async def share(self, registered: Iterable[str], generation: int) -> Partition:
        """Return this session's share of the items; `ensure` replaces an entry that was deleted.

        An entry that is not ephemeral belongs to no session: items dealt to it would wait for the next consumer in
        line. Consumers with the same filter deal the matching items among themselves, and consumers without filters
        deal all items, so no item waits for a consumer that refuses it.
        """
        name, names = self._name(self.generation), list(registered)
        if name not in names:
            self.forget()
        await self._check_live([entry for entry in names if entry not in self._live and entry != name], generation)
        self._live = {entry: self._live[entry] for entry in names if entry in self._live}
        alike = [
            entry for entry in names if (entry == name or self._live.get(entry)) and _class_of(entry) == self._class
        ]
        return Partition.among(name, alike, scattered=bool(self._class), queue=self._paths.base)

    async def _check_live(self, unknown: list[str], generation: int) -> None:
        """Find out which entries are ephemeral; of very many, some at each listing."""
        for start in range(0, min(len(unknown), MOST_UNKNOWN), PAGE):
            page = unknown[start : start + PAGE]
            found = await asyncio.gather(*(self._is_live(entry, generation) for entry in page))
            self._live.update((entry, live) for entry, live in zip(page, found, strict=True) if live is not None)

    async def _is_live(self, entry: str, generation: int) -> bool | None:
        """Whether an entry belongs to a session; None: it is gone."""
        try:
            stat = await self._zookeeper.exists(self._paths.consumer(entry), generation=generation)
        except NoAuthError:  # from ZooKeeper 3.9 on; two consumers then try to claim the same items
            return False
        return None if stat is None else stat.ephemeral_owner != 0

    def _size(self, name: str) -> int:
        return self._zookeeper.path_size(self._paths.consumer(name)) + 4

    def _name(self, generation: int) -> str:
        return f"{self._client}-{generation}{self._class}"

    def _observe(self, result: object, sent: float) -> None:
        if isinstance(result, Stat):
            self._clock.observe(result.mtime, sent)


def _class_of(name: str) -> str:
    """Return the filter mark of an entry; empty: no filter. Entries are named ``<client>-<generation>[-f<digest>]``."""
    _, mark, digest = name.rpartition("-f")
    return mark + digest if mark else ""
