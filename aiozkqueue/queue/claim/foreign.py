"""Splits items that hold several messages before any of them is delivered.

Curator's ``putMulti`` stores any number of messages in one znode. Completing them one by one would rewrite the rest
each time: the bytes written are quadratic in their number. So the session that has claimed such an item replaces it by
its messages, each a separate znode with its own lock, attempts and disposition. That is one multi under the item's
lock, at its version. The names of the parts sort where the item was, so the order stays the same for both programs.

This writes each message again. If more messages exist than fit into one multi, each part gets several and
is split in turn: `MOST_PARTS` parts at a time. A znode holds less than a megabyte, so this ends after a few rounds.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import ClaimLostError, OutcomeUnknownError, QueueError, SessionClosedError, SessionExpiredError
from aiozkqueue.queue.commit.foreign import SplitItem
from aiozkqueue.queue.commit.write import AtomicWrite
from aiozkqueue.zookeeper import Create, CreateAs, ZooKeeperError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.zookeeper.auth import Acl

    from .candidate_index import CandidateIndex
    from .releases import Releases
    from .services import ClaimServices

log: Final = logging.getLogger(__name__)

#: Parts of an item that one multi creates.
MOST_PARTS: Final = 1000
#: Bytes of everything else in that multi: the slot, the item, the lock, the attempts.
_OVERHEAD: Final = 8 * 1024
#: Bytes of a part's frame.
_FRAME: Final = 16


class Splitter:
    """Splits the items of one queue that one session has claimed.

    ``candidates`` receives the places of new parts.
    """

    def __init__(self, services: ClaimServices, *, releases: Releases, candidates: CandidateIndex) -> None:
        self._state = services.state
        self._zookeeper = services.zookeeper
        self._committer = services.committer
        self._ids = services.ids
        self._releases = releases
        self._candidates = candidates
        self._splits = 0

    @property
    def busy(self) -> bool:
        """Whether parts are being created, which are next in order."""
        return self._splits > 0

    async def next_of(self, claims: list[Claim]) -> list[Claim]:
        """Split the items that hold several messages, and return the claims to deliver now.

        These are the claims before the first such item. The claims after it are released, so that they follow its
        parts; so is every claim that arrives while parts of another item, or claims of an earlier batch, are about to
        be free. If an item cannot be split, its first message is delivered and the others stay in it.
        """
        first = next((index for index, claim in enumerate(claims) if claim.remainder is not None), len(claims))
        late = self.busy or self._releases.any
        if first == len(claims) and not late:
            return claims
        ready = [] if late else claims[:first]
        later = [claim for claim in claims if claim.remainder is None and claim not in ready]
        self._splits += 1
        try:
            to_split = [claim for claim in claims if claim.remainder is not None]
            outcomes = await asyncio.gather(*(self._split(claim) for claim in to_split))
            unsplit = [claim for claim, split in zip(to_split, outcomes, strict=True) if not split]
            if unsplit and unsplit[0] is to_split[0] and not late:
                ready.append(unsplit.pop(0))
            released = self._releases.release([*unsplit, *later])
            if released is not None:
                await asyncio.wait([released])  # later items must not be claimed before these are free
        finally:
            self._splits -= 1
        return ready

    async def _split(self, claim: Claim) -> bool:
        """Replace an item by its parts, or release it if it is lost; return False if it is unchanged and still ours."""
        try:
            parts = await self._parts(claim)
            if len(parts) < 2:  # noqa: PLR2004 - one is the item itself
                return False
            places = [self._state.paths.place_of(part.path) for part in parts]
            atomic_write = AtomicWrite(
                self._ids.next(), SplitItem(claim, parts, partial(self._candidates.put_back, places))
            )
            self._committer.submit(atomic_write)
            await atomic_write.done
        except (SessionClosedError, SessionExpiredError):
            return True  # its lock ends with the session
        except (ClaimLostError, OutcomeUnknownError):  # it is lost, or its parts may exist
            if (released := self._releases.release([claim])) is not None:
                await asyncio.wait([released])
            return True
        except (QueueError, ZooKeeperError) as error:
            log.debug(
                "queue %s: item %s cannot be split; its messages are delivered one by one: %s",
                self._state.name,
                claim.id,
                error,
                extra={"queue": self._state.name},
            )
            return False
        return True

    async def _parts(self, claim: Claim) -> list[Create]:
        """Return the parts of an item: one for each message, or as many as fit into a multi."""
        dialect, paths = self._state.dialect, self._state.paths
        assert dialect is not None  # noqa: S101 - else an item holds one message
        # The parts keep the item's ACL: another program's items need not have ours.
        acl = await self._zookeeper.acl(claim.path) if self._zookeeper.authenticated else None
        messages = dialect.messages(claim.raw)
        overhead = self._zookeeper.request_size([_part(acl, paths.item(dialect.piece(claim.name, 0)), b"")]) + _FRAME
        room = self._zookeeper.max_request - len(claim.raw) - _OVERHEAD
        count = min(len(messages), MOST_PARTS, max(0, room) // overhead)
        bounds = [len(messages) * number // count for number in range(count + 1)] if count else []
        return [
            _part(acl, paths.item(dialect.piece(claim.name, number)), dialect.part(messages[start:end], claim.raw))
            for number, (start, end) in enumerate(pairwise(bounds))
        ]


def _part(acl: Sequence[Acl] | None, path: str, data: bytes) -> Create:
    return Create(path, data) if acl is None else CreateAs.like(acl, path, data)
