"""A unit of work: claims and puts that are decided together. Transactions and deliveries are its public interfaces.

OPEN ──commit, rollback──▶ SETTLING ──▶ COMMITTED
  ▲                           │  ├────▶ ROLLED_BACK
  └── nothing was sent yet ───┘  └────▶ IN_DOUBT (slot collected, session closed)

Work is also SETTLING while its commit waits for target queues. It is OPEN again before that commit is sent or rolled
back, and after a commit that was not sent in time has been withdrawn.

`_move` is the only function that changes the state.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING

import anyio

from aiozkqueue.errors import (
    ClaimLostError,
    ConflictError,
    InvalidOptionError,
    ItemNotEmptyError,
    NotCommittedError,
    OutcomeUnknownError,
    QueueError,
    QueueFullError,
    SessionExpiredError,
    TransactionClosedError,
    TransactionTooLargeError,
)
from aiozkqueue.queue.commit.capacity import needs_of, reserve, try_reserve
from aiozkqueue.queue.commit.create_items import CreateItems, live_of, makes_bundles
from aiozkqueue.queue.commit.dispositions import CONSUME, describe_end, release_disposition
from aiozkqueue.queue.commit.end_claims import end_claims
from aiozkqueue.queue.commit.failures import unknown
from aiozkqueue.queue.commit.multi import new_contribution
from aiozkqueue.queue.commit.release_claims import ReleaseClaims
from aiozkqueue.queue.commit.unique_keys import earlier_holder, has_unique_keys, leave_out_held, unique_key
from aiozkqueue.queue.commit.write import AtomicWrite, Composition, WithdrawnError, join_parts
from aiozkqueue.queue.put.prepare import make_ready
from aiozkqueue.queue.state.bundle_hold import BundledClaim
from aiozkqueue.runtime.deadline import AT_ONCE, FOREVER, Deadline
from aiozkqueue.runtime.tasks import wait_settled, within

from .late_writes import no_capacity, not_sent
from .releases import Release, refuse_to_overtake
from .work_state import WorkState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aiozkqueue.queue.commit.alterations import TransactionalAlteration
    from aiozkqueue.queue.commit.capacity import Needs, Reservation
    from aiozkqueue.queue.commit.dispositions import Disposition
    from aiozkqueue.queue.commit.multi import Contribution
    from aiozkqueue.queue.commit.put import Put
    from aiozkqueue.queue.commit.write import Part
    from aiozkqueue.queue.outcome import Outcome
    from aiozkqueue.queue.state.claim import Claim

    from .core import SessionCore

#: The transaction of this task's block, for `DirectPutWarning`.
current_work: ContextVar[UnitOfWork | None] = ContextVar("aiozkqueue_transaction", default=None)

#: Estimated bytes of a put in a request besides its data and the item's name: header, path of the lane, ACL.
PUT_OVERHEAD = 200

#: Errors of a commit that lost a race: its messages are redelivered at once, without a delay.
_LOST_RACES = (ClaimLostError, ConflictError)

#: Errors of a commit that say nothing about its messages: they are redelivered at once.
_BLAMELESS = (*_LOST_RACES, WithdrawnError)

#: Errors of a commit that are not defects: its messages are redelivered.
REDELIVERY_ERRORS = (SessionExpiredError, *_LOST_RACES, ItemNotEmptyError)


# Constants, because looking up an enum member takes as long as the comparison, and this runs for every message.
_OPEN, _SETTLING, _COMMITTED = WorkState.OPEN, WorkState.SETTLING, WorkState.COMMITTED
_ROLLED_BACK, _IN_DOUBT = WorkState.ROLLED_BACK, WorkState.IN_DOUBT


class UnitOfWork:
    """Claims and puts that are committed or undone together."""

    __slots__ = (
        "__weakref__",
        "_alterations",
        "_atomic_write",
        "_claims",
        "_conditions",
        "_delivered",
        "_hint",
        "_jittered_delay",
        "_keys",
        "_preparation",
        "_puts",
        "_release",
        "_reply",
        "_reservation",
        "_size",
        "_state",
        "id",
        "runtime",
    )

    def __init__(self, runtime: SessionCore, work_id: str, delivered: Claim | None = None, hint: str = "") -> None:
        self.runtime: SessionCore = runtime
        """The core of its session."""
        self.id: str = work_id
        self._delivered = delivered  # the message of a delivery, which it holds
        self._hint = hint
        self._state = _OPEN
        self._claims: dict[Claim, Disposition] = {} if delivered is None else {delivered: CONSUME}
        # Most transactions have none of these, and two empty dictionaries would cost as much as the claim.
        self._alterations: dict[tuple[str, str], TransactionalAlteration] | None = None
        self._reply: Part | None = None
        self._conditions: list[Part] | None = None
        self._keys: dict[tuple[str, str], str] | None = None
        self._puts: list[Put] = []
        self._reservation: Reservation | None = None
        self._size = 0
        self._atomic_write: AtomicWrite | None = None
        self._preparation: anyio.CancelScope | None = None  # of a commit that waits for its target queues
        self._release: asyncio.Future[None] | None = None
        self._jittered_delay: float | None = None

    @property
    def what(self) -> str:
        """Its name in errors."""
        if self._delivered is None:
            return f"transaction {self.id}"
        return f"message {self._delivered.id} of queue {self._delivered.state.name!r}"

    @property
    def kind(self) -> str:
        """Its name in warnings, which is the same for each message: Python keeps every text that it has shown."""
        if self._delivered is None:
            return "a transaction"
        return f"a delivery of queue {self._delivered.state.name!r}"

    @property
    def outcome(self) -> Outcome:
        """The outcome that is known so far."""
        return self._state.outcome

    @property
    def claims(self) -> Iterable[Claim]:
        """The claims that it holds."""
        return self._claims.keys()

    @property
    def holds(self) -> bool:
        """Whether it holds any claim."""
        return bool(self._claims)

    @property
    def generation(self) -> int | None:
        """The number of its ZooKeeper session; None: it holds no claim, so any session will do."""
        for claim in self._claims:
            return claim.generation
        return None

    @property
    def open(self) -> bool:
        """Whether it has not been settled."""
        return self._state is _OPEN

    @property
    def undecided(self) -> bool:
        """Whether it is open and has claims, puts or alterations."""
        return self._state is _OPEN and bool(self._claims or self._puts or self._alterations)

    @property
    def lost(self) -> bool:
        """Whether its claims are known to be lost: their ZooKeeper session has ended."""
        generation = self.generation
        return generation is not None and generation != self.runtime.zookeeper.generation

    def require_open(self) -> None:
        """Raise TransactionClosedError if it has been settled."""
        if self._state is not _OPEN:
            msg = f"{self.what} is already {self._state.words}; {self._hint or 'begin a new transaction'}"
            raise TransactionClosedError(msg)

    def require_of(self, runtime: SessionCore) -> None:
        """Raise InvalidOptionError if it belongs to another session, which may have another root."""
        if self.runtime is not runtime:
            msg = f"{self.what} belongs to another session; use one of the same session"
            raise InvalidOptionError(msg)

    # -- collecting

    def hold(self, claims: Sequence[Claim]) -> None:
        """Add claims, to be consumed unless decided otherwise.

        A claim that was lost stays, also if its message is taken again: the commit must fail.
        """
        for claim in claims:
            self._claims[claim] = CONSUME

    def detach(self, claims: Iterable[Claim]) -> None:
        """Remove claims, which another unit of work settles."""
        for claim in claims:
            del self._claims[claim]

    def add_put(self, put: Put) -> str:
        """Add a put; return its id, or the id of an earlier put here with the same unique key.

        Raises: TransactionClosedError, TransactionTooLargeError, DuplicateKeyError.
        """
        if self._state is not _OPEN:
            self.require_open()
        if put.plan is not None:
            if self._keys is None:
                self._keys = {}
            if (earlier := earlier_holder(self._keys, put)) is not None:
                return earlier
        size = len(put.data) + len(put.prefix) + PUT_OVERHEAD + (0 if put.plan is None else put.plan.weight)
        if self._size + size > self.runtime.max_puts:
            if self._keys is not None and (key := unique_key(put)) is not None:
                del self._keys[put.state.name, key.hash]
            msg = (
                f"{self.what}: with this message for queue {put.state.name!r} it would put {self._size + size} bytes, "
                f"more than one ZooKeeper request takes ({self.runtime.zookeeper.max_request}); commit in parts"
            )
            raise TransactionTooLargeError(msg)
        self._size += size
        self._puts.append(put)
        return put.id

    def add_puts(self, puts: Iterable[Put], condition: Part) -> list[str]:
        """Add puts that belong together, and operations that must not be refused; return the ids as `add_put` does.

        After an error none of them is added.

        Raises: as `add_put`.
        """
        count, size, keys = len(self._puts), self._size, None if self._keys is None else dict(self._keys)
        self._size += condition.weight
        try:
            ids = [self.add_put(put) for put in puts]
        except QueueError:
            del self._puts[count:]
            self._size, self._keys = size, keys
            raise
        if self._conditions is None:
            self._conditions = []
        self._conditions.append(condition)
        return ids

    def end(self, queue: str, message_id: str, disposition: Disposition) -> None:
        """Set the disposition of one message at the commit.

        Raises:
            TransactionClosedError: it has been settled.
            InvalidOptionError: this transaction has not taken the message.
        """
        self.require_open()
        for claim in self._claims:
            if claim.id == message_id and claim.state.name == queue:
                self._claims[claim] = disposition
                return
        msg = f"message {message_id} of queue {queue!r} was not taken by {self.what}"
        raise InvalidOptionError(msg)

    def alter(self, place: str, alteration: TransactionalAlteration) -> None:
        """Add an alteration of the message at a place; it replaces an earlier alteration of the message.

        Raises: TransactionClosedError.
        """
        self.require_open()
        if self._alterations is None:
            self._alterations = {}
        self._alterations[alteration.state.name, place] = alteration

    def removes(self, queue: str, place: str) -> bool:
        """Whether it removes a message that it has not taken."""
        alteration = None if self._alterations is None else self._alterations.get((queue, place))
        return alteration is not None and alteration.removes

    def reply_with(self, reply: Part) -> None:
        """Send a reply with the commit; it replaces an earlier reply. Raises: TransactionClosedError."""
        self.require_open()
        self._reply = reply

    def drop_puts(self) -> None:
        """Drop the puts with their conditions, the alterations and the reply."""
        self._puts.clear()
        self._alterations = self._keys = self._reply = self._conditions = None
        self._size = 0

    async def release_unseen(self, claims: list[Claim]) -> None:
        """Release claims that no caller receives, as if they had never been made."""
        if not self._state.final and self._atomic_write is None:
            for claim in claims:
                self._claims.pop(claim, None)
        else:  # its own claims are already decided, and a second release could remove another session's lock
            claims = [claim for claim in claims if claim not in self._claims]
        for claim in claims:
            claim.delivered = False
        await self._release_late(claims)

    # -- deciding

    async def commit(self, timeout: float | None = None) -> None:
        """Commit. Raises: NotCommittedError, OutcomeUnknownError, TransactionClosedError, SessionClosedError."""
        self.runtime.check()
        if self._state is not _OPEN:
            self.require_open()
        deadline = FOREVER if timeout is None else Deadline(timeout, self.runtime.clock)
        try:
            if self._puts and not self.make_ready_now():
                await self._make_ready(deadline)
            atomic_write = self.begin_commit()
        except QueueError as error:
            if self.open:
                await self._rollback_unsent(error, deadline)
            raise
        if atomic_write is None:
            return
        await atomic_write.wait(limit=None if timeout is None else deadline.left)
        if not atomic_write.settled:
            raise self._withdraw(atomic_write, timeout)
        if self._release is not None:
            await wait_settled(self._release, limit=self.runtime.grace)
        if atomic_write.error is not None:
            raise atomic_write.error

    def make_ready_now(self) -> bool:
        """Return whether the commit can be sent now; if it can, capacity in its target queues is reserved."""
        bounded = False
        for put in self._puts:
            if not put.state.ready or (put.plan is not None and not put.plan.ready):
                return False
            bounded = bounded or put.state.snapshot.capacity is not None
        if bounded and self._reservation is None:
            self._reservation = try_reserve(self._needs())
            return self._reservation is not None
        return True

    def begin_commit(self) -> AtomicWrite | None:
        """Send the commit and return its atomic write; None if there is nothing to commit.

        Its target queues must be ready: see `make_ready_now`.

        Raises:
            TransactionClosedError: it has been settled.
            InvalidOptionError: it releases a message, and ends a later one of the same group.
            TransactionTooLargeError: it is larger than a request may be; nothing was sent. If it holds messages of
                bundles, this is the error of the write instead.
            SessionClosedError: the session has been closed.
        """
        if self._state is not _OPEN:
            self.require_open()
        if not self._claims and not self._puts and not self._alterations:
            self._move(_SETTLING)
            self._move(_COMMITTED)
            return None
        runtime = self.runtime
        dispositions = self._claims
        if len(dispositions) > 1:
            refuse_to_overtake(self.what, dispositions)
        if (shared := self._contribution()) is not None:
            atomic_write = AtomicWrite(self.id, None, self._commit_settled)
            runtime.committer.submit(atomic_write, shared)
        else:
            atomic_write = AtomicWrite(self.id, self._part(), self._commit_settled)
            # A trial composition would replace the changes of another write in progress about the same bundle. The
            # committer composes one at a time, and refuses those that are too large.
            if atomic_write.part.weight > runtime.safe_size and not atomic_write.part.chains:
                self._refuse_too_large(atomic_write)
            runtime.committer.submit(atomic_write)
        if self._reservation is not None:
            self._reservation.bind(atomic_write)
            self._reservation = None
        self._move(_SETTLING)
        if self._delivered is not None:
            runtime.remember_undecided(self)  # a transaction is recorded at its beginning
        self._atomic_write = atomic_write
        if runtime.tracing is not None:
            runtime.tracing.settling("commit", self.id, dispositions, self._puts, atomic_write)
        return atomic_write

    def _contribution(self) -> Contribution | None:
        """Return its contribution to a shared write; None: it may not be a member of one."""
        claims, puts = self._claims, self._puts
        if len(claims) > 1 or len(puts) > 1 or self._alterations or self._reply or self._conditions:
            return None
        ended: BundledClaim | None = None
        created: Put | None = None
        for claim, disposition in claims.items():
            if disposition is not CONSUME or not isinstance(claim, BundledClaim) or claim.state.snapshot.end_hooks:
                return None
            ended = claim
        for put in puts:
            if put.plan is not None or not makes_bundles(put.state):
                return None
            created = put
        return new_contribution((ended, created, FOREVER))

    def _part(self) -> Part:
        """Return the part of the commit: it ends claims, then alters messages, then replies, then puts new ones.

        The puts come last: they read their paths in the last results.
        """
        if not (self._puts or self._alterations or self._reply):
            return end_claims(self.id, self._claims, self.generation)
        parts: list[Part] = []
        if self._claims:
            parts.append(end_claims(self.id, self._claims, self.generation))
        if self._alterations:
            parts += self._alterations.values()
        if self._conditions:
            parts += self._conditions
        if self._reply is not None:
            parts.append(self._reply)
        if self._puts:
            parts.append(CreateItems(self._puts, FOREVER, self._needs))
        return join_parts(parts)

    async def rollback(
        self,
        delay: float | None = None,
        error: str | None = None,
        *,
        cause: BaseException | None = None,
        rewrite: bytes | None = None,
        date: int | None = None,
    ) -> None:
        """Undo: drop the puts, release the claims after ``delay`` seconds (None: each queue's policy).

        ``error`` and ``cause`` are the reason: a text that is stored, and the exception for the log. With ``rewrite``,
        the item of the only claim is replaced by these bytes. With ``date``, the delay ends at this moment, ms in
        ZooKeeper's time.

        It always succeeds. It returns when the locks or their session are gone, after one session timeout at the
        latest: if no server answers, the session ends by then, and the locks with it. If a commit is in flight, it
        first waits for its result. A commit that waits for its target queues ends with NotCommittedError.

        Raises:
            TransactionClosedError: it has been committed.
            OutcomeUnknownError: a commit is in flight, and its result is not known after one session timeout.
        """
        if self._state is _SETTLING and self._preparation is not None:
            self._preparation.cancel()
            self._move(_OPEN)
        if self._state is _SETTLING:
            grace = self.runtime.grace
            await self.decision(grace)
            if self._state is _SETTLING:
                raise unknown(self.id, f"its commit is in progress, with no answer within {grace:.3g} s")
        if self._state is _COMMITTED:
            self.require_open()
        if self._state is _OPEN:
            self._move(_SETTLING)
            self._release_claims(Release(delay, error, cause, rewrite, date))
            self._move(_ROLLED_BACK)
        if self._release is not None:
            await wait_settled(self._release, limit=self.runtime.grace)

    def predict_disposition(self, claim: Claim, error: str) -> str:
        """Describe for the log the fate of its only message if it is undone for this error.

        The policy's delay, which may be random, is drawn here; the release uses the same delay.
        """
        if self._state is not _OPEN:
            return f"it is already {self._state.words}"
        if self.runtime.closed or self.lost:
            return "not released, because its claim is lost"
        disposition = release_disposition(claim, None, error, self.runtime.random.random)
        if disposition.kind == "release":
            self._jittered_delay = disposition.delay
        return describe_end(disposition)

    def gives_up(self, claim: Claim) -> bool:
        """Whether its message is given up if it is undone for an error: that was the last attempt."""
        return self._state is _OPEN and not self.runtime.closed and not self.lost and claim.delivered and claim.used_up

    def rollback_nowait(self) -> None:
        """Undo at once, for callers that can no longer wait."""
        if self._state is _OPEN:
            self._move(_SETTLING)
            self._release_claims(Release(0))
            self._move(_ROLLED_BACK)

    async def decision(self, limit: float | None) -> None:
        """Wait until a commit in flight is decided, up to ``limit`` seconds."""
        if self._atomic_write is not None and not self._atomic_write.settled:
            await asyncio.wait((self._atomic_write.done,), timeout=limit)

    # -- internals

    def _move(self, state: WorkState) -> None:
        before = self._state
        allowed = state is _SETTLING if before is _OPEN else before is _SETTLING and state is not _SETTLING
        if not allowed:
            msg = f"{self.what}: cannot move from {before.name} to {state.name}"
            raise AssertionError(msg)
        self._state = state
        if state.final:
            runtime = self.runtime
            if runtime.meter is not None:
                runtime.meter.decided(state.outcome)
            runtime.remember_outcome(self, state.outcome)

    def _withdraw(self, atomic_write: AtomicWrite, timeout: float | None) -> QueueError:
        """Withdraw a commit that took too long; return the error."""
        # It was sent before its queue became bounded, and refused: it waits for capacity.
        full = next((limit.queue for limit in self._needs() if not limit.holds(atomic_write)), None)
        if not self.runtime.committer.withdraw(atomic_write):
            return unknown(self.id, f"no answer within {timeout} s")
        self._move(_OPEN)
        self.rollback_nowait()
        error = not_sent(self.what, timeout) if full is None else no_capacity(self.what, full, timeout)
        self._atomic_write = None  # this work has been settled without it
        atomic_write.fail(error)  # notifies its watchers: the capacity gates and its trace
        return error

    async def _rollback_unsent(self, error: QueueError, deadline: Deadline) -> None:
        """Undo work whose commit could not be sent; wait until the messages are released, up to its deadline."""
        # No server has answered in time: the messages are not the cause.
        delay = 0 if type(error) is NotCommittedError else None
        self._move(_SETTLING)
        self._release_claims(Release(delay, str(error), error))
        self._move(_ROLLED_BACK)
        if self._release is not None:
            left, grace = deadline.left, self.runtime.grace
            await wait_settled(self._release, limit=grace if left is None else min(left, grace))

    async def _make_ready(self, deadline: Deadline) -> None:
        """Open the target queues, and reserve their capacity, waiting if necessary.

        Raises: as `QueueState.open` and `CapacityGate.acquire`; NotCommittedError: no server answers in time, or
            `rollback` ends the wait.
        """
        self._move(_SETTLING)
        scope = self._preparation = anyio.CancelScope()
        with scope:
            try:
                await self._open_queues(deadline.seconds)
                if self._reservation is None:
                    self._reservation = await reserve(self._needs(), deadline, self.generation)
            finally:
                self._preparation = None
                if self._state is _SETTLING:
                    self._move(_OPEN)
        if self._state is not _OPEN:
            self._free_capacity()
            msg = f"{self.what} was rolled back while its commit waited for the queues it puts to; nothing was sent"
            raise NotCommittedError(msg)

    async def _open_queues(self, timeout: float | None) -> None:
        """Make sure that the target queues exist, and leave puts out whose keys are held if a queue is full."""
        try:
            await within(timeout, make_ready(self._puts))
            if self._reservation is None and has_unique_keys(self._puts):
                await within(timeout, self._reserve_or_leave_out())
        except TimeoutError as error:
            msg = f"{self.what}: the queues it puts to could not be opened within {timeout} s; nothing was sent"
            raise NotCommittedError(msg) from error

    async def _reserve_or_leave_out(self) -> None:
        """Reserve capacity for puts with unique keys, or leave out or refuse those whose keys are held.

        Raises: as `leave_out_held` and `reserve`.
        """
        with suppress(QueueFullError, TransactionTooLargeError):
            self._reservation = await reserve(self._needs(), AT_ONCE, self.generation)
            return
        ended = [claim.id for claim in self._claims]
        ended += [alteration.id for alteration in (self._alterations or {}).values()]
        await leave_out_held(self.runtime.zookeeper, self._puts, ended)

    def _needs(self) -> Needs:
        return needs_of(live_of(self._puts), self._claims, self._alterations.values() if self._alterations else ())

    def _refuse_too_large(self, atomic_write: AtomicWrite) -> None:
        zookeeper = self.runtime.zookeeper
        composition = Composition(self.runtime.server_clock)
        atomic_write.part.compose(composition)
        size = zookeeper.request_size(composition.operations) + 512  # plus the operation on the slot
        if size > zookeeper.max_request:
            msg = (
                f"{self.what} takes {size} bytes, ZooKeeper accepts {zookeeper.max_request} in one request; "
                "nothing was sent; commit in parts"
            )
            raise TransactionTooLargeError(msg)

    def _commit_settled(self, atomic_write: AtomicWrite) -> None:
        """Record the result of the commit."""
        if atomic_write is not self._atomic_write:
            return
        error = atomic_write.error
        if error is None:
            self._move(_COMMITTED)
        elif isinstance(error, OutcomeUnknownError):
            self._release_claims(Release(0, str(error), error, in_doubt=True))  # of those that it has not ended
            self._move(_IN_DOUBT)
        else:
            if isinstance(error, ItemNotEmptyError):
                self._release_claims(Release(0, str(error), error, obstructed=error.message_id))
            elif not isinstance(error, SessionExpiredError):
                self._release_claims(Release(0 if isinstance(error, _BLAMELESS) else None, str(error), error))
            self._move(_ROLLED_BACK)
        self._atomic_write = None  # its puts refer to this: a reference cycle would burden the garbage collector

    def _release_claims(self, release: Release) -> None:
        """Drop the puts, and send the release of all claims, until it is applied or the session has ended."""
        self.drop_puts()
        self._free_capacity()
        runtime = self.runtime
        if runtime.closed or not self._claims or self.lost:
            return
        if release.delay is None:
            release = release._replace(delay=self._jittered_delay)
        dispositions = release.dispositions(self._claims, runtime.random.random)
        release_id = runtime.ids.next()
        atomic_write = AtomicWrite(release_id, ReleaseClaims(release_id, dispositions, self.generation))
        try:
            runtime.committer.submit(atomic_write)
        except QueueError:
            return  # the session has just been closed, its locks end with it
        self._release = atomic_write.done
        if runtime.tracing is not None:
            runtime.tracing.settling("rollback", self.id, dispositions, (), atomic_write)

    def _free_capacity(self) -> None:
        """Release the capacity that is reserved for the commit, if any."""
        if self._reservation is not None:
            self._reservation.release()
            self._reservation = None

    async def _release_late(self, claims: list[Claim]) -> None:
        """Release claims that came too late to be added."""
        dispatcher = self.runtime.dispatcher(claims[0].state) if claims else None
        released = dispatcher.releases.release(claims) if dispatcher is not None else None
        if released is not None:
            await wait_settled(released, limit=self.runtime.grace)
