"""The releases of one dispatcher: of claims that no taker wants, at once, and of failed claims, after their delay."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import AccessDeniedError
from aiozkqueue.queue.commit.dispositions import RELEASE
from aiozkqueue.queue.commit.release_claims import ReleaseClaims
from aiozkqueue.queue.commit.write import AtomicWrite
from aiozkqueue.queue.state.bundle_hold import BundledClaim

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiozkqueue.errors import QueueError
    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.runtime.clock import Clock, Timer

    from .bundles import HeldBundles
    from .candidate_index import CandidateIndex
    from .services import ClaimServices

log: Final = logging.getLogger(__name__)

#: Seconds until the next try after ZooKeeper has refused the record of an attempt, unless an ACL or a quota forbids it.
AGAIN: Final = 5.0
#: Seconds between two warnings of attempts that cannot be recorded: ZooKeeper may refuse those of all messages.
WARNED_EACH: Final = 60.0


class Releases:
    """Releases claims as if they had never been made, and counts the releases that are in flight."""

    def __init__(self, services: ClaimServices, *, candidates: CandidateIndex, held_bundles: HeldBundles) -> None:
        self._state = services.state
        self._committer = services.committer
        self._ids = services.ids
        self._candidates = candidates
        self._held_bundles = held_bundles
        self._in_flight: set[AtomicWrite] = set()
        self._closed = False
        self._clock = services.clock
        self._warned_at = float("-inf")
        self._unreported = 0  # attempts that could not be recorded, since the last warning

    @property
    def any(self) -> bool:
        """Whether a release is in flight."""
        return bool(self._in_flight)

    def release(self, claims: Sequence[Claim]) -> asyncio.Future[None] | None:
        """Release claims at once; the future is done when the locks are gone. None: there is nothing to wait for."""
        atomic_write = self._release(claims)
        return None if atomic_write is None else atomic_write.done

    def _release(self, claims: Sequence[Claim]) -> AtomicWrite | None:
        if claims and claims[0].bundled and not self._closed:
            self._held_bundles.put_back([claim for claim in claims if isinstance(claim, BundledClaim)])
            claims = [claim for claim in claims if not claim.bundled]
        if not claims or self._closed:
            return None
        release_id, dispositions = self._ids.next(), dict.fromkeys(claims, RELEASE)
        atomic_write = AtomicWrite(release_id, ReleaseClaims(release_id, dispositions, claims[0].generation))
        self._committer.submit(atomic_write)
        self._watch(atomic_write)
        return atomic_write

    def skip(self, claim: Claim, error: QueueError) -> float:
        """Keep a claim whose attempt cannot be recorded for `AGAIN` seconds, or leave its message to other sessions.

        Return the seconds for which its taker pauses.
        """
        if not isinstance(error, AccessDeniedError) and claim.group_lock is None:
            self._warn_of_kept(claim, error)
            self._state.release_later(claim, AGAIN)
            return AGAIN
        text = "queue %s: message %s is skipped, because its attempt cannot be recorded: %s; or remove the message"
        log.warning(text, self._state.name, claim.id, error, extra=claim.log_ids())
        if isinstance(claim, BundledClaim):
            self._held_bundles.suspend(claim)
            return 0.0
        claim.record_refused = True
        lock = claim.id if claim.group_lock is None else claim.group_lock.group
        if (atomic_write := self._release([claim])) is not None:
            atomic_write.watch(lambda _: self._candidates.set_aside([lock]))
        return 0.0

    def _warn_of_kept(self, claim: Claim, error: QueueError) -> None:
        """Log one warning a minute, with the number of attempts since the last one."""
        now = self._clock.monotonic()
        if now - self._warned_at < WARNED_EACH:
            self._unreported += 1
            return
        text = "queue %s: message %s is kept for %g s, because its attempt cannot be recorded: %s"
        if self._unreported:
            text += f"; {self._unreported} more attempts were refused since the last warning"
        self._warned_at, self._unreported = now, 0
        log.warning(text, self._state.name, claim.id, AGAIN, error, extra=claim.log_ids())

    def return_all_at_hand(self) -> None:
        """Return the messages of bundles that no taker has received."""
        for atomic_write in self._held_bundles.return_all():
            self._watch(atomic_write)

    def when_done(self) -> asyncio.Future[list[object]]:
        """Return a future that is done when the releases in flight have been answered."""
        return asyncio.gather(*(atomic_write.done for atomic_write in self._in_flight), return_exceptions=True)

    def close(self) -> None:
        """Stop releasing: the locks end with the session."""
        self._closed = True

    def _watch(self, atomic_write: AtomicWrite) -> None:
        self._in_flight.add(atomic_write)
        atomic_write.watch(self._done)

    def _done(self, atomic_write: AtomicWrite) -> None:
        self._in_flight.discard(atomic_write)
        self._candidates.wakeup.set()


class DelayedReleases:
    """Failed claims whose locks this session keeps until the retry delay has passed, and then releases.

    This is used for items of another program: the other consumers of such a queue must respect the delay, and they
    understand only locks. It is also used where ZooKeeper refuses the timed lock. The lock stays an ephemeral lock of
    the session, so the item is free at once if this process dies. ``release`` gets each claim after its delay.
    """

    def __init__(self, clock: Clock, release: Callable[[Claim], None]) -> None:
        self._clock = clock
        self._release = release
        self._timers: dict[Claim, Timer] = {}

    @property
    def any(self) -> bool:
        """Whether a claim is kept."""
        return bool(self._timers)

    def release_later(self, claim: Claim, delay: float) -> None:
        """Hold a claim for another ``delay`` seconds."""
        claim.delivered = claim.recorded = False
        self._timers[claim] = self._clock.call_later(delay, partial(self._due, claim))

    def close(self) -> None:
        """Cancel all releases: the locks end with the session."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _due(self, claim: Claim) -> None:
        del self._timers[claim]
        self._release(claim)
