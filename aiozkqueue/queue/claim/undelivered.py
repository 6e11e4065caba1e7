"""Settles claims that are never delivered: undecodable, expired, or with no attempts left.

No caller waits for this commit. Its failure is logged here, and the claim is released.
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
from aiozkqueue.queue.commit.dispositions import LONGEST_SKIP, RELEASE, Disposition
from aiozkqueue.queue.commit.end_claims import EndClaims
from aiozkqueue.queue.commit.release_claims import ReleaseClaims
from aiozkqueue.queue.commit.write import AtomicWrite

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from aiozkqueue.layout import IdSource
    from aiozkqueue.queue.commit.group_commit import GroupCommitter
    from aiozkqueue.queue.state.claim import Claim

log: Final = logging.getLogger(__name__)


def settle_undelivered(
    claim: Claim, disposition: Disposition, committer: GroupCommitter, ids: IdSource
) -> asyncio.Future[None]:
    """Settle a claim; if that is refused, leave the message alone for a long time."""

    def release(disposition: Disposition) -> None:
        with suppress(SessionClosedError):  # then the lock ends with the session
            release_id = ids.next()
            committer.submit(AtomicWrite(release_id, ReleaseClaims(release_id, {claim: disposition}, claim.generation)))

    end_id = ids.next()
    atomic_write = AtomicWrite(end_id, EndClaims(end_id, {claim: disposition}, claim.generation))
    atomic_write.watch(partial(_on_settled, claim, release))
    committer.submit(atomic_write)
    return atomic_write.done


def _on_settled(claim: Claim, release: Callable[[Disposition], None], settled: AtomicWrite) -> None:
    error = settled.error
    if error is None or isinstance(error, SessionExpiredError | SessionClosedError):
        return
    context = claim.log_ids(settled.transaction_id)
    if isinstance(error, TransactionTooLargeError):
        # No client can move an item that leaves no room for a reason in the same multi; none of our puts makes one.
        log.error(
            "queue %s: message %s of %d bytes is too large to become a dead letter, and stays locked while this "
            "session lives: delete %s manually (%s)",
            claim.state.name,
            claim.id,
            len(claim.raw),
            claim.path,
            error,
            extra=context,
        )
    elif not isinstance(error, ClaimLostError | OutcomeUnknownError):
        text = "queue %s: message %s cannot be removed, and is not retried for %d s: %s"
        log.error(text, claim.state.name, claim.id, LONGEST_SKIP, error, extra=context)
        release(Disposition("release", delay=LONGEST_SKIP))
    elif claim.group_lock is not None:
        claim.group_lock.lose()
    else:
        release(RELEASE)
