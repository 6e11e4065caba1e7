"""The registry of a queue's consumers: an ephemeral znode for each ZooKeeper session that takes from it.

Whoever is idle watches it, since a death there is how locks come free without anybody writing to the items; and
everybody finds its share of the items by it.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from typing import TYPE_CHECKING, Final

from aiozkqueue.layout import condition_digest
from aiozkqueue.zookeeper import PAGE, Create, MultiError, NodeExistsError, NoNodeError, SetData, Stat

from .partition import Partition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiozkqueue.layout import Condition, QueuePaths
    from aiozkqueue.queue.runtime.clock import ServerClock
    from aiozkqueue.queue.state.claim import SessionBudget
    from aiozkqueue.zookeeper import ZooKeeper


#: Entries looked at after one listing: a queue has fewer consumers, and a listing must not wait for much more.
MOST_UNKNOWN: Final = 1000


def this_process() -> bytes:
    """What a consumer's entry tells operators: where it runs."""
    return json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode()


class Registration:
    """One session's entry, made anew in each ZooKeeper session. ``about`` is its data."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        paths: QueuePaths,
        client: str,
        *,
        about: bytes,
        budgets: SessionBudget,
        clock: ServerClock,
        condition: Condition | None = None,
    ) -> None:
        self._zookeeper = zookeeper
        self._paths = paths
        self._client = client
        self._about = about
        self._budgets = budgets
        self._clock = clock
        self._class = "" if condition is None else f"-f{condition_digest(condition)}"
        self._generation = 0
        self._live: dict[str, bool] = {}  # by entry

    async def ensure(self, generation: int) -> bool:
        """Register in this ZooKeeper session, if that has not been done; False when the queue must be opened again.

        Raises: SessionExpiredError, ConnectionLossError, MultiError of the zookeeper package.
        """
        if self._generation == generation:
            return True
        path, sent = self._paths.consumer(self._name(generation)), self._clock.local()
        try:
            results = await self._zookeeper.multi(
                [Create(path, ephemeral=True), SetData(path, self._about)], generation=generation
            )
        except MultiError as error:
            if isinstance(error.error, NoNodeError):
                return False
            if not isinstance(error.error, NodeExistsError):  # an earlier copy of this, its reply lost
                raise
        else:
            self._observe(results[1], sent)
        self._budgets.of(generation).spend(self._size(self._name(generation)))
        self._generation = generation
        return True

    async def sample_clock(self, generation: int) -> None:
        """Learn ZooKeeper's time by a write, unless the current leader's is known."""
        if not self._clock.sampled and self._generation == generation:
            path = self._paths.consumer(self._name(generation))
            sent = self._clock.local()
            results = await self._zookeeper.multi([SetData(path, self._about)], generation=generation)
            self._observe(results[0], sent)

    async def share(self, registered: Iterable[str], generation: int) -> Partition:
        """Find this session's place among the live ones; `ensure` replaces an entry that somebody has deleted.

        An entry that is not ephemeral belongs to nobody: items dealt to it would wait for the next in line.
        Those who filter alike deal out among themselves what passes their filter, those who take everything all there
        is: so nobody's item waits for a consumer that refuses it.
        """
        name, names = self._name(self._generation), list(registered)
        if self._generation and name not in names:
            self._budgets.of(self._generation).free(self._size(name))
            self._generation = 0
        await self._look_at([one for one in names if one not in self._live and one != name], generation)
        self._live = {one: self._live[one] for one in names if one in self._live}
        alike = [one for one in names if (one == name or self._live.get(one)) and _class_of(one) == self._class]
        return Partition.among(name, alike, scattered=bool(self._class), queue=self._paths.base)

    async def _look_at(self, unknown: list[str], generation: int) -> None:
        """Find out which entries are ephemeral: of very many, some at each listing.

        To ask for a stat needs no permission, as reading an entry that somebody else has made may.
        """
        for start in range(0, min(len(unknown), MOST_UNKNOWN), PAGE):
            page = unknown[start : start + PAGE]
            stats = await asyncio.gather(
                *(self._zookeeper.exists(self._paths.consumer(one), generation=generation) for one in page)
            )
            self._live.update(
                (one, stat.ephemeral_owner != 0) for one, stat in zip(page, stats, strict=True) if stat is not None
            )

    def _size(self, name: str) -> int:
        return self._zookeeper.path_size(self._paths.consumer(name)) + 4

    def _name(self, generation: int) -> str:
        return f"{self._client}-{generation}{self._class}"

    def _observe(self, result: object, sent: float) -> None:
        if isinstance(result, Stat):
            self._clock.observe(result.mtime, sent)


def _class_of(name: str) -> str:
    """By which filter an entry's consumer takes; empty: everything. ``<client>-<generation>[-f<digest>]``."""
    _, mark, digest = name.rpartition("-f")
    return mark + digest if mark else ""
