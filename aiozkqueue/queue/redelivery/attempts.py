"""The step from a claim to a message that a handler sees."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiozkqueue.errors import AccessDeniedError, NotCommittedError, PayloadError, SessionExpiredError
from aiozkqueue.queue.commit.orphan_locks import AttemptWrite
from aiozkqueue.queue.runtime.tasks import wait_settled

if TYPE_CHECKING:
    from aiozkqueue.queue.claim.dispatcher import ClaimDispatcher
    from aiozkqueue.queue.destination import Destination
    from aiozkqueue.queue.session_core import SessionCore
    from aiozkqueue.queue.state.claim import Claim


def show(engine: SessionCore, queue: Destination[Any], claims: list[Claim]) -> list[Claim] | None:
    """Do what `hand_over` does where nothing is to be recorded; None where that has to be awaited."""
    if claims[0].store.policy.counts_at_hand_over:
        return None
    return _handed(engine, _showable(engine, queue, claims))


async def hand_over(
    engine: SessionCore, queue: Destination[Any], claims: list[Claim], limit: float | None = None
) -> list[Claim]:
    """Return the claims that may be shown now, with the attempt recorded where the policy counts them.

    Undecodable ones go to the dead letters, those whose life has ended end as the configuration says, those lost
    meanwhile are whoever's who has them. When the caller is cancelled, all are given back before the cancellation goes
    on, and cost no attempt. When the attempts are not known to be recorded within ``limit`` seconds (None: however long
    it takes), none is returned, and all are given back as soon as that is known.

    Raises:
        SessionExpiredError: their ZooKeeper session is over.
    """
    shown = _showable(engine, queue, claims)
    if shown and shown[0].store.policy.counts_at_hand_over:
        recorded = await _record(engine, engine.dispatcher(shown[0].store), shown, limit)
        shown = [claim for claim in recorded if claim.generation == engine.zookeeper.generation]
    return _handed(engine, shown)


def _showable(engine: SessionCore, queue: Destination[Any], claims: list[Claim]) -> list[Claim]:
    """Return those that can be shown; the others are settled, or gone with the session that they were claimed in."""
    shown: list[Claim] = []
    current = engine.zookeeper.generation
    decodes, decode, name = queue.undecodable != "raise", queue.codec.decode, queue.name
    for claim in claims:
        if claim.generation != current or (claim.fields is not None and not _lives(engine, claim)):
            continue
        if decodes:
            try:
                claim.value = decode(claim.body, name)
            except PayloadError as error:
                engine.dispatcher(engine.store(name)).bury(claim, str(error))
                continue
        shown.append(claim)
    return shown


def outlived(engine: SessionCore, claims: list[Claim]) -> bool:
    """Tell whether the life of one of these has ended, as far as is known: its holder must not look for more."""
    clock = engine.server_clock
    ends = [claim.fields.expires for claim in claims if claim.fields is not None and claim.fields.expires is not None]
    return bool(ends) and clock.sampled and clock.now() >= min(ends)


def _handed(engine: SessionCore, claims: list[Claim]) -> list[Claim]:
    """Return claims, noting that they are shown now."""
    for claim in claims:
        claim.handed = True
    if engine.meter is not None:
        engine.meter.handed(claims)
    return claims


def _lives(engine: SessionCore, claim: Claim) -> bool:
    """Tell whether its life has not ended while it was claimed ahead, as far as is known."""
    end = None if claim.fields is None else claim.fields.expires
    if end is None or not engine.server_clock.sampled or engine.server_clock.now() < end:
        return True
    engine.dispatcher(claim.store).expire(claim, end)
    return False


async def _record(
    engine: SessionCore, dispatcher: ClaimDispatcher, claims: list[Claim], limit: float | None
) -> list[Claim]:
    """Count the attempts, in one group, before anybody sees the messages."""
    attempts = [AttemptWrite(engine.ids.next(), claim) for claim in claims]
    for attempt in attempts:
        engine.committer.submit(attempt)
    lost: list[Claim] = []
    denied: dict[Claim, AccessDeniedError] = {}
    try:
        if not await _are_known(attempts, limit, engine.grace):
            _give_back(dispatcher, attempts, claims)
            return []
        for attempt, claim in zip(attempts, claims, strict=True):
            try:
                attempt.outcome()
            except AccessDeniedError as refusal:
                denied[claim] = refusal
            except SessionExpiredError:
                raise
            except NotCommittedError:
                lost.append(claim)
    except BaseException:
        await wait_settled(_give_back(dispatcher, attempts, claims), limit=engine.grace)
        raise
    dispatcher.release(lost)  # if one is ours after all, its count was tampered with
    for claim, error in denied.items():
        dispatcher.skip(claim, error)
    return [claim for claim in claims if claim not in lost and claim not in denied]


async def _are_known(attempts: list[AttemptWrite], limit: float | None, grace: float) -> bool:
    """Wait for the fate of records of attempts, ``limit`` seconds at the most."""
    if limit is None:
        for attempt in attempts:
            await attempt.wait()
        return True
    known = asyncio.gather(*(attempt.done for attempt in attempts), return_exceptions=True)
    await wait_settled(known, grace=grace, limit=limit)
    return all(attempt.settled for attempt in attempts)


def _give_back(dispatcher: ClaimDispatcher, attempts: list[AttemptWrite], claims: list[Claim]) -> asyncio.Future[None]:
    """Release claims as soon as it is known whether they were counted: a count that came later would stay."""
    given: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def told(_: object) -> None:
        if not given.done():
            given.set_result(None)

    def counted(_: object) -> None:
        released = dispatcher.release(claims)
        if released is None:
            told(None)
        else:
            released.add_done_callback(told)

    asyncio.gather(*(attempt.done for attempt in attempts), return_exceptions=True).add_done_callback(counted)
    return given
