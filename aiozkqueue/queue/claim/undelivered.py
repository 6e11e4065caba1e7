"""The end of a claim that nobody is shown: it does not decode, its life is over, or its attempts are used up.

Nobody waits for its commit. What that fails with is logged here, and the claim is given back.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import (
    ClaimLostError,
    OutcomeUnknownError,
    SessionClosedError,
    SessionExpiredError,
    TransactionTooLargeError,
)
from aiozkqueue.queue.commit.dispositions import ASIDE, RELEASE, Disposition
from aiozkqueue.queue.commit.held import CommitWrite
from aiozkqueue.queue.commit.release import ReleaseWrite
from aiozkqueue.queue.runtime.log_context import about

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from aiozkqueue.layout import IdSource
    from aiozkqueue.queue.commit.group_commit import GroupCommitter
    from aiozkqueue.queue.commit.write import AtomicWrite
    from aiozkqueue.queue.runtime.clock import ServerClock
    from aiozkqueue.queue.state.claim import Claim

log: Final = logging.getLogger(__name__)


def settle_unshown(
    claim: Claim, disposition: Disposition, committer: GroupCommitter, ids: IdSource, clock: ServerClock
) -> asyncio.Future[None]:
    """End the hold on a claim; where that is refused, the message is left alone for long."""

    def give_back(disposition: Disposition) -> None:
        with suppress(SessionClosedError):  # then the lock goes with the session
            committer.submit(ReleaseWrite(ids.next(), {claim: disposition}, clock, claim.generation))

    atomic_write = CommitWrite(ids.next(), {claim: disposition}, (), clock, claim.generation)
    atomic_write.watch(partial(_see_to, claim, give_back))
    committer.submit(atomic_write)
    return atomic_write.done


def _see_to(claim: Claim, give_back: Callable[[Disposition], None], settled: AtomicWrite) -> None:
    error = settled.error
    if error is None or isinstance(error, SessionExpiredError | SessionClosedError | OutcomeUnknownError):
        return
    told = about(claim, settled.transaction_id)
    if isinstance(error, TransactionTooLargeError):
        # An item that leaves no room for a reason beside it, which no put of ours makes, cannot be moved by anybody.
        log.error(
            "queue %s: message %s of %d bytes is too large to become a dead letter, and stays locked while this "
            "session lives: delete %s by hand (%s)",
            claim.store.name,
            claim.id,
            len(claim.raw),
            claim.path,
            error,
            extra=told,
        )
    elif not isinstance(error, ClaimLostError):
        words = "queue %s: message %s cannot be removed, and is left alone for %d s: %s"
        log.error(words, claim.store.name, claim.id, ASIDE, error, extra=told)
        give_back(Disposition("release", delay=ASIDE))
    elif claim.group_lock is not None:
        claim.group_lock.lose()
    else:
        give_back(RELEASE)
