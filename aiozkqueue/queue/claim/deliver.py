"""The delivery of claimed messages: expiry, decoding, and the count of attempts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiozkqueue.codec import BYTES
from aiozkqueue.errors import (
    AccessDeniedError,
    ClaimLostError,
    NotCommittedError,
    OutcomeUnknownError,
    PayloadError,
    SessionExpiredError,
)
from aiozkqueue.queue.commit.attempts import CountAttempt
from aiozkqueue.queue.commit.write import AtomicWrite
from aiozkqueue.queue.destination import binding_of
from aiozkqueue.runtime.reply_limit import ReplyLimit
from aiozkqueue.runtime.tasks import wait_settled

if TYPE_CHECKING:
    from aiozkqueue.errors import QueueError
    from aiozkqueue.queue.claim.dispatcher import ClaimDispatcher
    from aiozkqueue.queue.claim.runtime import ClaimRuntime
    from aiozkqueue.queue.destination import Destination
    from aiozkqueue.queue.state.claim import Claim


def deliver_claims_now(runtime: ClaimRuntime, queue: Destination[Any], claims: list[Claim]) -> list[Claim] | None:
    """Return the result of `deliver_claims` if that need not record attempts; None if it must be awaited."""
    if claims[0].state.snapshot.policy.counts_before_delivery:
        return None
    return _mark_delivered(runtime, _deliverable(runtime, queue, claims))


async def deliver_claims(
    runtime: ClaimRuntime, queue: Destination[Any], claims: list[Claim], limit: ReplyLimit | float | None = None
) -> list[Claim]:
    """Return the claims that may be delivered now, after recording the attempt if the policy counts deliveries.

    Undecodable messages go to the dead letters, expired ones end as configured, and lost claims are left to their new
    holders. If the caller is cancelled, all claims are released before the cancellation continues, and count no
    attempt. If the attempts are not known to be recorded within ``limit`` seconds (None: unlimited), the result is
    empty, and all claims are released as soon as that is known.

    Raises:
        SessionExpiredError: the claims' ZooKeeper session has ended.
    """
    deliverable = _deliverable(runtime, queue, claims)
    if deliverable and deliverable[0].state.snapshot.policy.counts_before_delivery:
        recorded = await _record(runtime, runtime.dispatcher(deliverable[0].state), deliverable, limit)
        deliverable = [claim for claim in recorded if claim.generation == runtime.zookeeper.generation]
    return _mark_delivered(runtime, deliverable)


def _deliverable(runtime: ClaimRuntime, queue: Destination[Any], claims: list[Claim]) -> list[Claim]:
    """Return the claims that can be delivered; the others are settled here, or lost with their session."""
    deliverable: list[Claim] = []
    current = runtime.zookeeper.generation
    binding, name = binding_of(queue), queue.name
    # All bytes can be decoded, so `Message.value` does it when they are read.
    decodes, decode = binding.undecodable != "raise" and binding.codec is not BYTES, binding.codec.decode
    for claim in claims:
        if claim.generation != current or (claim.fields is not None and not _check_expiry(runtime, claim)):
            continue
        if decodes:
            try:
                claim.value = decode(claim.body, name)
            except PayloadError as error:
                runtime.dispatcher(runtime.queue_state(name)).dead_letter(claim, error)
                continue
        deliverable.append(claim)
    return deliverable


def has_expired(runtime: ClaimRuntime, claims: list[Claim]) -> bool:
    """Return whether one of these claims has expired, as far as known; the holder must then not wait for more."""
    clock = runtime.server_clock
    ends = [claim.fields.expires for claim in claims if claim.fields is not None and claim.fields.expires is not None]
    return bool(ends) and clock.sampled and clock.now() >= min(ends)


def _mark_delivered(runtime: ClaimRuntime, claims: list[Claim]) -> list[Claim]:
    """Return the claims, marked as delivered."""
    for claim in claims:
        claim.delivered = True
    if runtime.meter is not None:
        runtime.meter.delivered(claims)
    return claims


def _check_expiry(runtime: ClaimRuntime, claim: Claim) -> bool:
    """Return whether a claim has not expired since it was claimed, as far as known; expire it otherwise."""
    end = None if claim.fields is None else claim.fields.expires
    if end is None or not runtime.server_clock.sampled or runtime.server_clock.now() < end:
        return True
    runtime.dispatcher(claim.state).expire(claim, end)
    return False


async def _record(
    runtime: ClaimRuntime, dispatcher: ClaimDispatcher, claims: list[Claim], limit: ReplyLimit | float | None
) -> list[Claim]:
    """Record the attempts, in one group commit, before a handler sees the messages."""
    attempts = [AtomicWrite(runtime.ids.next(), CountAttempt(claim)) for claim in claims]
    for attempt in attempts:
        runtime.committer.submit(attempt)
    lost: list[Claim] = []
    refused: dict[Claim, QueueError] = {}
    try:
        if not await _are_known(attempts, limit, runtime.grace):
            _release_when_known(dispatcher, attempts, claims)
            return []
        for attempt, claim in zip(attempts, claims, strict=True):
            try:
                attempt.raise_error()
            except SessionExpiredError:
                raise
            except (ClaimLostError, OutcomeUnknownError):  # the release reads whether the claim is still ours
                lost.append(claim)
            except (AccessDeniedError, NotCommittedError) as error:
                refused[claim] = error
    except BaseException:
        await wait_settled(_release_when_known(dispatcher, attempts, claims), limit=runtime.grace)
        raise
    dispatcher.releases.release(lost)
    pause = max((dispatcher.releases.skip(claim, error) for claim, error in refused.items()), default=0.0)
    if pause and len(refused) == len(claims):  # ZooKeeper may refuse the records of all messages
        await asyncio.sleep(min(pause, limit) if isinstance(limit, float) else pause)
    return [claim for claim in claims if claim not in lost and claim not in refused]


async def _are_known(attempts: list[AtomicWrite], limit: ReplyLimit | float | None, grace: float) -> bool:
    """Wait up to ``limit`` seconds for the outcomes of the attempt records; return whether all are known."""
    if limit is None:
        for attempt in attempts:
            await attempt.wait()
        return True
    known = asyncio.gather(*(attempt.done for attempt in attempts), return_exceptions=True)
    if isinstance(limit, ReplyLimit):
        reply_limit, sent, limit = limit, limit.now(), limit.seconds
        known.add_done_callback(lambda _: reply_limit.answered(sent))
    await wait_settled(known, grace=grace, limit=limit)
    return all(attempt.settled for attempt in attempts)


def _release_when_known(
    dispatcher: ClaimDispatcher, attempts: list[AtomicWrite], claims: list[Claim]
) -> asyncio.Future[None]:
    """Release claims when it is known whether their attempts were counted: a count after the release would remain."""
    all_released: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def finish(_: object) -> None:
        if not all_released.done():
            all_released.set_result(None)

    def counted(_: object) -> None:
        released = dispatcher.releases.release(claims)
        if released is None:
            finish(None)
        else:
            released.add_done_callback(finish)

    asyncio.gather(*(attempt.done for attempt in attempts), return_exceptions=True).add_done_callback(counted)
    return all_released
