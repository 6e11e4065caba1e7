"""The additions that a queue with bundles needs: its permission to have them, and counters of their messages.

The server counts znodes, and a bundle is one. So a multi with bundles also counts the messages after the first of each.
The number is written in binary: each bit that is set writes ``<queue>/bundled/<bit>``, whose *version* counts; for
messages that leave a bundle as single items, ``<queue>/bundled/left-<bit>``. No version is asserted, so two sessions
never cause each other a refusal. The counters are exact, because each multi is applied once.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from aiozkqueue.layout import BUNDLE_BITS, name_at
from aiozkqueue.zookeeper import BadVersionError, Create, MultiError, NoAuthError, NodeExistsError, NoNodeError, SetData

if TYPE_CHECKING:
    from aiozkqueue.layout import QueuePaths
    from aiozkqueue.zookeeper import Operation, ZooKeeper, ZooKeeperError

log: Final = logging.getLogger(__name__)


class BundleSetup:
    """The permission and the counters of one queue, for one session."""

    def __init__(self, zookeeper: ZooKeeper, paths: QueuePaths) -> None:
        self._zookeeper = zookeeper
        self._paths = paths
        self._refused = False
        self._examine = False  # whether each counter is checked
        self._attempts = 0  # calls of `first_counters`
        self.allowing: bool = False
        """Whether a task adds to the configuration that there may be bundles, or this user may not."""

    def count(self, more: int) -> list[Operation]:
        """Return the operations that count messages beyond the number of znodes that are created.

        It is negative for messages that leave a bundle. No operation is returned if an ACL forbids it.
        """
        if self._refused:
            return []
        number, last = abs(more), BUNDLE_BITS - 1
        bits = [bit for bit in range(last) if number >> bit & 1] + [last] * (number >> last)
        return [SetData(self._paths.bundle_count(bit, left=more < 0), b"") for bit in bits]

    def refuse(self, error: ZooKeeperError) -> None:
        """Stop counting, because ZooKeeper forbids it: puts continue, and count a bundle as one."""
        if not self._refused:
            self._refused = True
            text = "queue %s: %s; a bundle of this session counts as one put"
            log.info(text, self._paths.name, error, extra={"queue": self._paths.name})

    def missing(self) -> None:
        """Record that a counter is missing, although its folder seems full: it may hold other programs' znodes."""
        self._examine = True

    async def complete(self, guard: Operation) -> None:
        """Create the missing counters, in a multi with the guard.

        Raises: ZooKeeperError: MultiError also if another session has created some in the meantime, or the guard fails.
        """
        folder = await self._zookeeper.exists(self._paths.bundled)
        full = folder is not None and folder.num_children >= len(self._counters)
        if self._refused or (full and not self._examine):
            return
        try:
            if creates := await self.missing_counters():
                await self._zookeeper.multi([guard, *creates])
        except NoAuthError as error:
            self.refuse(error)
        except MultiError as refusal:
            if isinstance(refusal.error, NodeExistsError | BadVersionError | NoNodeError):
                raise
            self.refuse(refusal.error)
        self._examine = False

    async def first_counters(self) -> list[Operation]:
        """Return the creates of the counters for the first bundle. Raises: ZooKeeperError.

        Usually there are none yet. So only the second call checks which are missing. Then something prevents them, such
        as another program's znode: the queue gets its bundles without them.
        """
        self._attempts += 1
        match self._attempts:
            case 1:
                return [Create(self._paths.bundled), *map(Create, self._counters)]
            case 2:
                return await self.missing_counters()
            case _:
                return []

    async def missing_counters(self) -> list[Operation]:
        """Return the creates of the counters that are missing, and of their folder. Raises: ZooKeeperError."""
        try:
            present = set(await self._zookeeper.children(self._paths.bundled))
        except NoNodeError:
            return [Create(self._paths.bundled), *map(Create, self._counters)]
        return [Create(path) for path in self._counters if name_at(path) not in present]

    @property
    def _counters(self) -> list[str]:
        return [self._paths.bundle_count(bit, left=left) for bit in range(BUNDLE_BITS) for left in (False, True)]
