"""Items that hold several messages are split before any of them is handed over.

Curator's ``putMulti`` stores any number of messages in one znode. To end them one by one there would rewrite the rest
for each: bytes quadratic in their number. So whoever has claimed such an item replaces it by its messages, each a znode
of its own with a lock, attempts and a fate of its own. That is one multi under the item's lock, at its version. The
names of the parts sort where the item was, so that the order stays what it was for both sides.

Each message is written once more for that. When there are more than fit into one multi, each part gets several, and is
split in its turn: `MOST_PARTS` parts at a time, and a znode holds less than a megabyte, so this ends after few rounds.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import QueueError, SessionClosedError, SessionExpiredError
from aiozkqueue.queue.commit.foreign import SplitSettlement
from aiozkqueue.zookeeper import Create, CreateAs, ZooKeeperError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiozkqueue.layout import IdSource
    from aiozkqueue.queue.commit.group_commit import GroupCommitter
    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import ZooKeeper
    from aiozkqueue.zookeeper.auth import Acl

log: Final = logging.getLogger(__name__)

#: Parts of an item made by one multi.
MOST_PARTS: Final = 1000
#: What else goes into that multi, bytes: the slot, the item, the lock, the attempts.
_BESIDE: Final = 8 * 1024
#: What the frame of a part takes, bytes.
_FRAME: Final = 16


class Splitter:
    """Splits the items that one session has claimed of one queue.

    ``give_back`` releases claims, ``found`` is told the places of parts, ``returning`` tells whether claims that nobody
    took are about to be free again.
    """

    def __init__(
        self,
        store: QueueState,
        zookeeper: ZooKeeper,
        *,
        committer: GroupCommitter,
        ids: IdSource,
        give_back: Callable[[Sequence[Claim]], asyncio.Future[None] | None],
        found: Callable[[Sequence[str]], None],
        returning: Callable[[], bool],
    ) -> None:
        self._store = store
        self._zookeeper = zookeeper
        self._committer = committer
        self._ids = ids
        self._give_back = give_back
        self._found = found
        self._returning = returning
        self._under_way = 0

    @property
    def busy(self) -> bool:
        """Whether parts are about to come that are next in order."""
        return self._under_way > 0

    async def next_of(self, claims: list[Claim]) -> list[Claim]:
        """Split the items that hold several messages, and return the claims to hand over now.

        Those are the claims before the first such item. What is behind it is given back, to come after its parts, and
        so is what lands while the parts of another item, or claims of an earlier batch, are about to be free. An item
        that cannot be split is handed over by its first message, and the others are left in it.
        """
        first = next((index for index, claim in enumerate(claims) if claim.rest is not None), len(claims))
        late = self.busy or self._returning()
        if first == len(claims) and not late:
            return claims
        ready = [] if late else claims[:first]
        behind = [claim for claim in claims if claim.rest is None and claim not in ready]
        self._under_way += 1
        try:
            several = [claim for claim in claims if claim.rest is not None]
            outcomes = await asyncio.gather(*(self._split(claim) for claim in several))
            left = [claim for claim, split in zip(several, outcomes, strict=True) if not split]
            if left and left[0] is several[0] and not late:
                ready.append(left.pop(0))
            returned = self._give_back([*left, *behind])
            if returned is not None:
                await asyncio.wait([returned])  # what comes after them must not be claimed before they are free
        finally:
            self._under_way -= 1
        return ready

    async def _split(self, claim: Claim) -> bool:
        """Replace an item by its parts; False when the item is as it was, and still ours."""
        try:
            parts = await self._parts(claim)
            if len(parts) < 2:  # noqa: PLR2004 - one is the item itself
                return False
            places = [self._store.paths.place_of(part.path) for part in parts]
            atomic_write = SplitSettlement(self._ids.next(), claim, parts, lambda: self._found(places))
            self._committer.submit(atomic_write)
            await atomic_write.done
        except (SessionClosedError, SessionExpiredError):
            return True  # its lock goes with the session
        except (QueueError, ZooKeeperError) as error:
            log.debug(
                "queue %s: item %s is not split, and its messages come one by one: %s",
                self._store.name,
                claim.id,
                error,
                extra={"queue": self._store.name},
            )
            return False
        return True

    async def _parts(self, claim: Claim) -> list[Create]:
        """Return the parts of an item: one for each message, or as many as fit into a multi."""
        dialect, paths = self._store.dialect, self._store.paths
        assert dialect is not None  # noqa: S101 - else an item holds one message
        # Whoever may use the item may use its parts: another program's items need not have our ACL.
        acl = await self._zookeeper.acl(claim.path) if self._zookeeper.authenticated else None
        messages = dialect.messages(claim.raw)
        overhead = self._zookeeper.request_size([_part(acl, paths.item(dialect.piece(claim.name, 0)), b"")]) + _FRAME
        room = self._zookeeper.max_request - len(claim.raw) - _BESIDE
        count = min(len(messages), MOST_PARTS, max(0, room) // overhead)
        bounds = [len(messages) * number // count for number in range(count + 1)] if count else []
        return [
            _part(acl, paths.item(dialect.piece(claim.name, number)), dialect.item(messages[start:end]))
            for number, (start, end) in enumerate(pairwise(bounds))
        ]


def _part(acl: Sequence[Acl] | None, path: str, data: bytes) -> Create:
    return Create(path, data) if acl is None else CreateAs.like(acl, path, data)
