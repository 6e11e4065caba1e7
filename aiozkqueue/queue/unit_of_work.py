"""One unit of work: claims and puts, decided together. Transactions and deliveries are faces of it.

OPEN ──commit──▶ SETTLING ──▶ COMMITTED
  │                 │ refused
  └──rollback──▶ SETTLING ──▶ ROLLED BACK
                    └ fate not known (slot collected, session closed) ──▶ UNKNOWN

`_move` is the only place that moves it.
"""

from __future__ import annotations

import asyncio
import enum
from contextvars import ContextVar
from typing import TYPE_CHECKING

from aiozkqueue.errors import (
    ClaimLostError,
    ConflictError,
    InvalidOptionError,
    ItemNotEmptyError,
    NotCommittedError,
    OutcomeUnknownError,
    QueueError,
    SessionExpiredError,
    TransactionClosedError,
    TransactionTooLargeError,
)

from .commit.capacity import needs_of, reserve, try_reserve
from .commit.dispositions import CONSUME, Disposition, aside, fate, refuse_to_overtake, release_disposition
from .commit.group_commit import unknown
from .commit.held import CommitWrite
from .commit.puts import PutWrite
from .commit.release import ReleaseWrite
from .commit.unique_keys import earlier_holder
from .outcome import Outcome
from .put.prepare import make_ready
from .runtime.deadline import FOREVER, Deadline
from .runtime.tasks import wait_settled

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aiozkqueue.zookeeper import Operation

    from .commit.alterations import TransactionalAlteration
    from .commit.capacity import Reservation
    from .commit.puts import Put
    from .commit.write import AtomicWrite
    from .session_core import SessionCore
    from .state.claim import Claim
    from .state.hooks import CapacityLimit

#: The transaction whose block this task is in, for `DirectPutWarning`.
current: ContextVar[UnitOfWork | None] = ContextVar("aiozkqueue_transaction", default=None)

#: About what a put takes in a request besides its data and the item's name, bytes: header, path of the lane, ACL.
PUT_WEIGHT = 200

#: What a commit fails with through nobody's fault: it is done again at once, not after a delay.
_OTHERS_WERE_FIRST = (ClaimLostError, ConflictError)

#: What a commit fails with and nothing is wrong: its messages come again.
PASSING = (SessionExpiredError, *_OTHERS_WERE_FIRST, ItemNotEmptyError)


class _State(enum.Enum):
    OPEN = ("open", Outcome.OPEN, False)
    SETTLING = ("being settled", Outcome.UNKNOWN, False)
    COMMITTED = ("committed", Outcome.COMMITTED, True)
    ROLLED_BACK = ("rolled back", Outcome.ROLLED_BACK, True)
    IN_DOUBT = ("in doubt", Outcome.UNKNOWN, True)

    def __init__(self, words: str, outcome: Outcome, final: bool) -> None:  # noqa: FBT001 - a member's value
        self.words = words
        self.outcome = outcome
        self.final = final


# Looking a member up in its class takes as long as the comparison it is for, and these are on every message's way.
_OPEN, _SETTLING, _COMMITTED = _State.OPEN, _State.SETTLING, _State.COMMITTED
_ROLLED_BACK, _IN_DOUBT = _State.ROLLED_BACK, _State.IN_DOUBT


class UnitOfWork:
    """Claims and puts that are committed, or undone, together."""

    __slots__ = (
        "__weakref__",
        "_atomic_write",
        "_beside",
        "_claims",
        "_hint",
        "_jittered_delay",
        "_keys",
        "_puts",
        "_release",
        "_reservation",
        "_shown",
        "_size",
        "_state",
        "engine",
        "id",
    )

    def __init__(self, engine: SessionCore, work_id: str, shown: Claim | None = None, hint: str = "") -> None:
        self.engine: SessionCore = engine
        """The machinery it uses."""
        self.id: str = work_id
        self._shown = shown  # the message that it is the delivery of
        self._hint = hint
        self._state = _OPEN
        self._claims: dict[Claim, Disposition] = {}
        # Most transactions have none of these, and an empty dictionary each would cost as much as the claim.
        self._beside: dict[tuple[str, str], TransactionalAlteration] | None = None
        self._keys: dict[tuple[str, str], str] | None = None
        self._puts: list[Put] = []
        self._reservation: Reservation | None = None
        self._size = 0
        self._atomic_write: AtomicWrite | None = None
        self._release: asyncio.Future[None] | None = None
        self._jittered_delay: float | None = None

    @property
    def what(self) -> str:
        """What errors call it."""
        if self._shown is None:
            return f"transaction {self.id}"
        return f"message {self._shown.id} of queue {self._shown.store.name!r}"

    @property
    def outcome(self) -> Outcome:
        """How it ended, as far as is known."""
        return self._state.outcome

    @property
    def claims(self) -> Iterable[Claim]:
        """What it holds."""
        return self._claims.keys()

    @property
    def holds(self) -> bool:
        """Whether it holds anything."""
        return bool(self._claims)

    @property
    def generation(self) -> int | None:
        """The number of the ZooKeeper session that it belongs to; None: it holds nothing, any will do."""
        for claim in self._claims:
            return claim.generation
        return None

    @property
    def open(self) -> bool:
        """Whether nothing has been decided yet."""
        return self._state is _OPEN

    @property
    def undecided(self) -> bool:
        """Whether it is open and holds anything."""
        return self._state is _OPEN and bool(self._claims or self._puts or self._beside)

    @property
    def ready(self) -> bool:
        """Whether the queues it puts to are known to be there, and to have room: that is taken then."""
        bounded = False
        for put in self._puts:
            if not put.store.ready or (put.plan is not None and not put.plan.ready):
                return False
            bounded = bounded or put.store.room is not None
        if not bounded:
            return True
        if self._reservation is None:
            self._reservation = try_reserve(self._needs())
        return self._reservation is not None

    @property
    def lost(self) -> bool:
        """Whether its claims are known to be gone: their ZooKeeper session is over."""
        generation = self.generation
        return generation is not None and generation != self.engine.zookeeper.generation

    def require_open(self) -> None:
        """Raise TransactionClosedError when it has been settled."""
        if self._state is not _OPEN:
            msg = f"{self.what} is {self._state.words} already; {self._hint or 'begin a new transaction'}"
            raise TransactionClosedError(msg)

    def require_of(self, engine: SessionCore) -> None:
        """Raise InvalidOptionError when it is another session's, which may have its queues elsewhere."""
        if self.engine is not engine:
            msg = f"{self.what} is another session's; give one of the session that this was made with"
            raise InvalidOptionError(msg)

    # -- collecting

    def hold(self, claims: Sequence[Claim]) -> None:
        """Make claims part of this, to be consumed unless it is decided otherwise."""
        held = self._claims
        if held:
            taken = {claim.path for claim in claims}
            for lost in [one for one in held if one.path in taken]:  # was forced open, and has been taken again
                del held[lost]
                lost.budget.free(lost.size)
        for claim in claims:
            held[claim] = CONSUME

    def add_put(self, put: Put) -> str:
        """Make a put part of this; return its id, or that of the one of this which bears its unique key.

        Raises: TransactionClosedError, TransactionTooLargeError, DuplicateKeyError.
        """
        self.require_open()
        if put.plan is not None:
            if self._keys is None:
                self._keys = {}
            if (earlier := earlier_holder(self._keys, put)) is not None:
                return earlier
        size = len(put.data) + len(put.prefix) + PUT_WEIGHT + (0 if put.plan is None else put.plan.weight)
        if self._size + size > self.engine.max_puts:
            msg = (
                f"{self.what}: with this message for queue {put.store.name!r} it would put {self._size + size} bytes, "
                f"more than one ZooKeeper request takes ({self.engine.zookeeper.max_request}); commit in parts"
            )
            raise TransactionTooLargeError(msg)
        self._size += size
        self._puts.append(put)
        return put.id

    def end(self, queue: str, message_id: str, disposition: Disposition) -> None:
        """Decide how the hold on one message ends with the commit.

        Raises:
            TransactionClosedError: settled already.
            InvalidOptionError: the message was not taken by this transaction.
        """
        self.require_open()
        for claim in self._claims:
            if claim.id == message_id and claim.store.name == queue:
                self._claims[claim] = disposition
                return
        msg = f"message {message_id} of queue {queue!r} was not taken by {self.what}"
        raise InvalidOptionError(msg)

    def alter(self, place: str, beside: TransactionalAlteration) -> None:
        """Make an alteration of a message that lies there part of this, in the place of an earlier one of the same.

        Raises: TransactionClosedError.
        """
        self.require_open()
        if self._beside is None:
            self._beside = {}
        self._beside[beside.store.name, place] = beside

    def removes(self, queue: str, place: str) -> bool:
        """Whether this removes a message that it has not taken."""
        beside = None if self._beside is None else self._beside.get((queue, place))
        return beside is not None and beside.removes

    def drop_puts(self) -> None:
        """Forget the puts, and what was to be altered."""
        self._puts.clear()
        self._beside = self._keys = None
        self._size = 0

    async def release_unseen(self, claims: list[Claim]) -> None:
        """Give claims back that nobody is going to see, as if they had never been taken."""
        if not self._state.final and self._atomic_write is None:
            for claim in claims:
                self._claims.pop(claim, None)
        else:  # how those end that were part of this has been decided, and a lock given back twice may be another's
            claims = [claim for claim in claims if claim not in self._claims]
        for claim in claims:
            claim.handed = False
        await self._undo(claims)

    # -- deciding

    async def commit(self, timeout: float | None = None) -> None:
        """Commit. Raises: NotCommittedError, OutcomeUnknownError, TransactionClosedError, SessionClosedError."""
        self.engine.check()
        self.require_open()
        deadline = None if timeout is None else self.engine.clock.monotonic() + timeout
        try:
            if self._puts and not self.ready:
                await self._make_ready(timeout)
            atomic_write = self.begin_commit()
        except QueueError as error:
            if self.open:
                await self._undo_refused(error, patient=timeout is None)
            raise
        if atomic_write is None:
            return
        if deadline is not None:
            await atomic_write.wait(limit=max(0.0, deadline - self.engine.clock.monotonic()))
        elif not atomic_write.settled:  # as `wait` does, a coroutine less on every message's way
            try:
                await atomic_write.waiter()
            except asyncio.CancelledError:
                await atomic_write.wait_shielded()
                raise
        if not atomic_write.settled:
            raise self._withdraw(atomic_write, timeout)
        if self._release is not None:
            await wait_settled(self._release, limit=self.engine.grace)
        atomic_write.outcome()

    def begin_commit(self) -> AtomicWrite | None:
        """Send the commit; return what will know its fate. None when there was nothing to commit.

        The queues that are put to must have been opened.

        Raises:
            TransactionClosedError: settled already.
            InvalidOptionError: it gives back a message, and ends a later one of the same group.
            TransactionTooLargeError: larger than a request may be; nothing was sent.
            SessionClosedError: the session has been closed.
        """
        self.require_open()
        if not self._claims and not self._puts and not self._beside:
            self._move(_SETTLING)
            self._move(_COMMITTED)
            return None
        engine = self.engine
        dispositions = self._claims
        atomic_write: AtomicWrite
        if dispositions or self._beside:
            if len(dispositions) > 1:
                refuse_to_overtake(self.what, dispositions)
            beside = tuple(self._beside.values()) if self._beside else ()
            atomic_write = CommitWrite(
                self.id, dispositions, self._puts, engine.server_clock, self.generation, alterations=beside
            )
        else:
            atomic_write = PutWrite(self.id, self._puts, FOREVER)
        if atomic_write.weight > engine.surely_small:
            self._refuse_too_large(atomic_write)
        engine.committer.submit(atomic_write)
        if self._reservation is not None:
            self._reservation.bind(atomic_write)
            self._reservation = None
        self._move(_SETTLING)
        if self._shown is not None:
            engine.undecided(self)  # as a transaction is from its beginning
        self._atomic_write = atomic_write
        if engine.tracing is not None:
            engine.tracing.settling("commit", self.id, dispositions, self._puts, atomic_write)
        atomic_write.owner = self
        return atomic_write

    async def rollback(
        self, delay: float | None = None, error: str | None = None, *, rewrite: bytes | None = None
    ) -> None:
        """Undo: forget the puts, give the claims back after ``delay`` seconds (None: each queue's policy).

        With ``rewrite``, for work that holds one claim, its item is left with these bytes.

        Always succeeds: it returns when the locks are gone or their session is, and after one session timeout in any
        case: while no server answers, their session ends by then, and the locks with it. When a commit is under way it
        waits for that one's fate.

        Raises:
            TransactionClosedError: it has been committed.
            OutcomeUnknownError: a commit is under way, and its fate is not known after one session timeout.
        """
        if self._state is _SETTLING:
            await self.decision(self.engine.grace)
            if self._state is _SETTLING:
                raise unknown(self.id, f"its commit is under way, with no answer within {self.engine.grace:g} s")
        if self._state is _COMMITTED:
            self.require_open()
        if self._state is _OPEN:
            self._move(_SETTLING)
            self._give_back(delay, error, rewrite)
            self._move(_ROLLED_BACK)
        if self._release is not None:
            await wait_settled(self._release, limit=self.engine.grace)

    def predict_disposition(self, claim: Claim, error: str) -> str:
        """Say what becomes of the one message that it holds, if it is undone for this error: for the log, before that.

        The policy's delay, which may be random, is drawn here; the release keeps to it.
        """
        if self._state is not _OPEN:
            return f"it is {self._state.words} already"
        if self.engine.closed or self.lost:
            return "not given back, since its claim is lost"
        disposition = release_disposition(claim, None, error, self.engine.random.random)
        if disposition.kind == "release":
            self._jittered_delay = disposition.delay
        return fate(disposition)

    def release_nowait(self) -> None:
        """Undo at once, without waiting: for those that can no longer wait."""
        if self._state is _OPEN:
            self._move(_SETTLING)
            self._give_back(0, None)
            self._move(_ROLLED_BACK)

    async def decision(self, limit: float | None) -> None:
        """Wait until a commit that is under way is decided, ``limit`` seconds at the most."""
        if self._atomic_write is not None and not self._atomic_write.settled:
            await asyncio.wait((self._atomic_write.done,), timeout=limit)

    # -- inside

    def _move(self, state: _State) -> None:
        # Open work is settled first; what is being settled may be open again, when it was never sent.
        if (self._state is _OPEN) is not (state is _SETTLING) or self._state.final:
            msg = f"{self.what}: cannot move from {self._state.name} to {state.name}"
            raise AssertionError(msg)
        self._state = state
        if state.final:
            self.engine.decided(self, state.outcome)

    def _withdraw(self, atomic_write: AtomicWrite, timeout: float | None) -> QueueError:
        """Give up on a commit that took too long; return what that means for it."""
        if not self.engine.committer.withdraw(atomic_write):
            return unknown(self.id, f"no answer within {timeout} s")
        self._move(_OPEN)
        self.release_nowait()
        error = NotCommittedError(f"{self.what}: could not be sent within {timeout} s; nothing of it was applied")
        atomic_write.owner = None  # this has been settled without it
        atomic_write.fail(error)  # whoever watches it is told: the rooms that it was let into, and its trace
        return error

    async def _undo_refused(self, error: QueueError, *, patient: bool) -> None:
        """Undo what could not even be sent."""
        self._move(_SETTLING)
        self._give_back(0 if type(error) is NotCommittedError else None, str(error))
        self._move(_ROLLED_BACK)
        if self._release is not None and patient:
            await wait_settled(self._release, limit=self.engine.grace)

    async def _make_ready(self, timeout: float | None) -> None:
        """Open the queues put to, and take the room that they are short of. Raises: also as `CapacityGate.acquire`."""
        patience = Deadline(timeout, self.engine.clock)
        self._move(_SETTLING)
        try:
            await self._open_queues(timeout)
            if self._reservation is None:
                self._reservation = await reserve(self._needs(), patience, self.generation)
        finally:
            self._move(_OPEN)

    async def _open_queues(self, timeout: float | None) -> None:
        """Make sure that the queues put to are there."""
        try:
            async with asyncio.timeout(timeout):
                await make_ready(self._puts)
        except TimeoutError as error:
            msg = f"{self.what}: the queues it puts to could not be opened within {timeout} s; nothing was sent"
            raise NotCommittedError(msg) from error

    def _needs(self) -> dict[CapacityLimit[AtomicWrite], int]:
        return needs_of(self._puts, self._claims, self._beside.values() if self._beside else ())

    def _refuse_too_large(self, atomic_write: AtomicWrite) -> None:
        zookeeper = self.engine.zookeeper
        operations: list[Operation] = []
        atomic_write.compose(operations)
        size = zookeeper.request_size(operations) + 512  # the slot's operation comes on top
        if size > zookeeper.max_request:
            msg = (
                f"{self.what} takes {size} bytes, ZooKeeper takes {zookeeper.max_request} in one request; "
                "nothing was sent; commit in parts"
            )
            raise TransactionTooLargeError(msg)

    def commit_settled(self, atomic_write: AtomicWrite) -> None:
        """Take note of the commit's fate; for the settlement to call."""
        error = atomic_write.error
        if error is None:
            self._move(_COMMITTED)
        elif isinstance(error, OutcomeUnknownError):
            self._move(_IN_DOUBT)
        else:
            if isinstance(error, ItemNotEmptyError):
                self._give_back(0, str(error), obstructed=error.message_id)
            elif not isinstance(error, SessionExpiredError):
                self._give_back(0 if isinstance(error, _OTHERS_WERE_FIRST) else None, str(error))
            self._move(_ROLLED_BACK)

    def _give_back(
        self,
        delay: float | None,
        error: str | None,
        rewrite: bytes | None = None,
        *,
        obstructed: str | None = None,
    ) -> None:
        """Send the release of all claims; it stays on the session's debts until it is applied or the session over.

        The message ``obstructed`` could not be removed: it waits longer each time, whatever its policy says.
        """
        self._puts.clear()
        self._beside = None
        if self._reservation is not None:
            self._reservation.release()
            self._reservation = None
        engine = self.engine
        if engine.closed or not self._claims or self.lost:
            return
        if delay is None:
            delay = self._jittered_delay
        chance = engine.random.random
        dispositions = {claim: release_disposition(claim, delay, error, chance) for claim in self._claims}
        for claim, disposition in dispositions.items() if obstructed is not None else ():
            if claim.id == obstructed and disposition.kind == "release":
                longest = max(aside(claim.attempt), claim.store.policy.backoff.delay(claim.attempt, chance))
                dispositions[claim] = disposition._replace(delay=longest)
        if rewrite is not None:
            dispositions = {
                claim: disposition._replace(rewrite=rewrite) if disposition.kind == "release" else disposition
                for claim, disposition in dispositions.items()
            }
        atomic_write = ReleaseWrite(engine.ids.next(), dispositions, engine.server_clock, self.generation)
        try:
            engine.committer.submit(atomic_write)
        except QueueError:
            return  # the session has just been closed, its locks go with it
        self._release = atomic_write.done
        if engine.tracing is not None:
            engine.tracing.settling("rollback", self.id, dispositions, (), atomic_write)

    async def _undo(self, claims: list[Claim]) -> None:
        """Give claims back that came too late to be part of this."""
        dispatcher = self.engine.dispatcher(claims[0].store) if claims else None
        released = dispatcher.release(claims) if dispatcher is not None else None
        if released is not None:
            await wait_settled(released, limit=self.engine.grace)
