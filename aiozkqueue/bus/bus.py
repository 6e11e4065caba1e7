"""A bus: a posted event is delivered to every subscriber of its type, in every group."""

from __future__ import annotations

import logging
import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, cast
from weakref import WeakKeyDictionary

from pydantic import BaseModel

from aiozkqueue.arguments import seconds
from aiozkqueue.errors import (
    AlreadyExistsError,
    InvalidOptionError,
    PayloadError,
    QueueFullError,
    Reject,
    Retry,
    TransactionTooLargeError,
)
from aiozkqueue.layout import ConsumeTimes, Fixed, QueueConfig
from aiozkqueue.layout.buses import BusPaths
from aiozkqueue.queue.commit.capacity import needs_of, try_reserve
from aiozkqueue.queue.commit.create_items import CreateItems
from aiozkqueue.queue.commit.unique_keys import stored_id
from aiozkqueue.queue.commit.write import AtomicWrite, JoinedParts
from aiozkqueue.queue.options import headers_given
from aiozkqueue.queue.put.prepare import make_ready, prepare
from aiozkqueue.runtime.deadline import Deadline
from aiozkqueue.runtime.exception_groups import only_of
from aiozkqueue.session.cancellations import foreign_cancellations
from aiozkqueue.session.direct_puts import enter_live
from aiozkqueue.session.internals import add_headers, core_of, run_with, state_of, work_given
from aiozkqueue.session.middleware import check_awaited
from aiozkqueue.zookeeper import changes, reads

from .events import DONE, EVENT, EventTypes
from .groups import MOST_REFUSALS, UNCHANGED, Groups, GroupsChangedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import Unpack

    from aiozkqueue.arguments import Seconds
    from aiozkqueue.layout import Policy
    from aiozkqueue.queue.commit.put import Put
    from aiozkqueue.queue.message import DeadLetter
    from aiozkqueue.queue.options import PutOptions
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.session.delivery import Delivery
    from aiozkqueue.session.listener import Listener
    from aiozkqueue.session.listener_options import ListenerOptions
    from aiozkqueue.session.queue import Queue
    from aiozkqueue.session.session import QueueSession
    from aiozkqueue.session.transaction import Transaction
    from aiozkqueue.zookeeper import CallLimit

    from .groups import GroupsCheck

log: Final = logging.getLogger(__name__)

E = TypeVar("E", bound=BaseModel)
S = TypeVar("S", bound=BaseModel)

#: Three retries after the first call, at once; then the event is a dead letter.
DEFAULT_POLICY = ConsumeTimes(4, backoff=Fixed(0))

_NAME = re.compile(r"[A-Za-z0-9._:-]{1,100}")

#: The policies that the buses of a session were given for a queue, each with the stored policy last compared with it.
#: They outlive the buses: a session keeps each comparison permanently, and each request of a server may make a bus.
_compared: WeakKeyDictionary[QueueState, dict[Policy, Policy | None]] = WeakKeyDictionary()


class _Subscriber(NamedTuple):
    name: str
    kind: type[BaseModel]
    handler: Callable[[Any], Awaitable[None]]
    group: str | None


class Bus(Generic[E]):
    """A persistent bus of events: ``Bus(session, "orders", OrderEvent)``, whose events are the subclasses.

    Each event is handled by one process of each group, which calls every subscriber of its type or a type above it, one
    after the other. A failing subscriber does not stop the others, and a retry calls only those that failed. An event
    without subscribers is done; an undecodable event becomes a dead letter. Delivery is at least once: a process that
    dies leaves no record of the subscribers called.

    ``policy`` is stored with a queue of the bus that has none yet. A queue that has one keeps it, and a process whose
    ``policy`` differs follows the stored one, with a warning in the log. `Queue.configure` changes it for all processes
    while they run. Without ``policy``, a listener stores `DEFAULT_POLICY`, which is three retries at once and then the
    dead letters, and a process that only posts stores none.

    Raises: InvalidNameError, InvalidOptionError, SessionClosedError, WrongLoopError.
    """

    def __init__(self, session: QueueSession, name: str, event: type[E], *, policy: Policy | None = None) -> None:
        if policy is not None:
            QueueConfig(policy=policy)  # validates the policy
        self._session = session
        self._policy = policy
        self._paths = BusPaths(core_of(session).root, name)
        self._types: EventTypes[E] = EventTypes(event)
        self._groups = Groups(core_of(session), self._paths)
        self._subscribers: list[_Subscriber] = []

    @property
    def _limit(self) -> CallLimit:
        """The limit of one call, which `reads` and `changes` apply."""
        return core_of(self._session).limit(f"bus {self.name!r}")

    @property
    def name(self) -> str:
        """The bus's name."""
        return self._paths.name

    # -- posting

    @changes
    async def post(
        self,
        event: E,
        *,
        tx: Transaction | Delivery[Any] | None = None,
        timeout: Seconds | None = 0,
        **options: Unpack[PutOptions],
    ) -> list[str]:
        """Post an event to the bus and to every group, all or nothing; return the messages' ids.

        With ``unique="ignore"``, each of these queues that already holds a message with the key keeps that one, and its
        id is returned.

        Alone it is stored on return. With ``tx``, a transaction or delivery, it is posted when that commits; if a group
        joins or leaves between the two, the commit raises `ConflictError`, and repeating it is safe.

        ``timeout`` is how many seconds to wait for capacity if one of these queues has ``max_size`` (0: not at all;
        None: no limit). If a group leaves or joins in the meantime, the post continues with the groups that there are
        then. With ``tx``, its commit waits, for the groups that there were.

        Raises:
            QueueFullError: one of the queues has no capacity; the event was put into none.
            DuplicateKeyError: it was posted with ``unique``, and one of the queues already holds a message with its
                key; the event was put into none.
            PayloadError, InvalidOptionError: it is not an event of this bus, or does not fit its own type.
            MessageTooLargeError, TransactionTooLargeError, TransactionClosedError, NotCommittedError,
                OutcomeUnknownError, AccessDeniedError, SessionClosedError, WrongLoopError.
        """
        runtime = core_of(self._session)
        if tx is not None:
            work_given(tx).require_of(runtime)
        deadline = Deadline(seconds(timeout, "timeout"), runtime.clock)
        names, body = self._types.encode(event, self.name)
        headers = headers_given(self.name, options.pop("headers", None))
        if EVENT in headers or DONE in headers:
            msg = f"the headers {EVENT!r} and {DONE!r} are reserved by the bus; use other names"
            raise InvalidOptionError(msg)
        put_options: dict[str, Any] = {**options, "headers": {**headers, EVENT: names}}
        refusals = list[int]()
        while True:
            puts, check = await self._prepare(body, put_options)
            if refusals.count(check.modified) == MOST_REFUSALS:
                raise self._groups.inconsistent(UNCHANGED)
            if tx is not None:
                return work_given(tx).add_puts(puts, check)
            await make_ready(puts)
            bounded = needs_of(puts, {}).keys()
            atomic_write = AtomicWrite(runtime.ids.next(), JoinedParts((check, CreateItems(puts))))
            try:
                await self._enter(atomic_write, puts, deadline, check)
                await runtime.settle(atomic_write)
            except GroupsChangedError:
                if atomic_write.settled:  # otherwise it was not sent
                    refusals.append(check.modified)
                continue
            except (QueueFullError, TransactionTooLargeError):
                if bounded == needs_of(puts, {}).keys() and await self._groups.are_still(check):
                    raise
                continue  # the full queue is that of a group that has left, or it was not known to be bounded
            return [stored_id(put) for put in puts]

    async def _prepare(self, body: bytes, options: dict[str, Any]) -> tuple[list[Put], GroupsCheck]:
        """Return the puts of an event, to the bus and to every group, and the check that these are its groups."""
        runtime = core_of(self._session)
        while True:
            groups, check = await self._groups.known()
            puts = [prepare(runtime, self._queue(group, self._policy), body, options) for group in (None, *groups)]
            if all(put.state.snapshot.capacity is None for put in puts):
                return puts, check
            # A full queue refuses the event before the check is sent, even if its group has left.
            self._groups.forget()
            latest, check = await self._groups.known()
            if latest == groups:
                return puts, check

    async def _enter(
        self, atomic_write: AtomicWrite, puts: Sequence[Put], deadline: Deadline, check: GroupsCheck
    ) -> None:
        """Acquire capacity for a post until the deadline, except in the queue of a group that leaves before.

        Raises: GroupsChangedError; as `enter`.
        """
        reservation = try_reserve(needs_of(puts, {}))
        if reservation is not None:
            reservation.bind(atomic_write)
        elif deadline.seconds == 0:
            await enter_live(core_of(self._session), atomic_write, puts, deadline)
        else:
            async with self._groups.unchanged(check):
                await enter_live(core_of(self._session), atomic_write, puts, deadline)

    # -- subscribing

    def subscribe(
        self,
        kind: type[S],
        handler: Callable[[S], Awaitable[None]],
        *,
        name: str | None = None,
        group: str | None = None,
    ) -> None:
        """Call ``handler(event)`` for each event of this type, or of a subclass, in listeners of ``group``.

        ``name`` identifies the subscriber in retries, by default the function's name; keep it the same in every process
        and version. An error that it raises affects only this subscriber; `Retry` sets when it is called again, and
        `Reject` that it is not, unless another one failed: then both are.

        Raises:
            InvalidOptionError: the type is not an event of this bus, the name is invalid, or the handler cannot be
                awaited.
            AlreadyExistsError: the group has a subscriber of this name here.
        """
        self._types.require(kind, self.name)
        self._paths.queue(group)
        check_awaited(handler, "a subscriber")
        known_by = getattr(handler, "__name__", "") if name is None else name
        if not isinstance(cast("object", known_by), str) or not _NAME.fullmatch(known_by):
            msg = f"{known_by!r} cannot name a subscriber: give name=, 1 to 100 of A-Z a-z 0-9 . _ : -"
            raise InvalidOptionError(msg)
        if any(subscriber.name == known_by and subscriber.group == group for subscriber in self._subscribers):
            msg = f"bus {self.name!r} already has a subscriber {known_by!r}; give name= to distinguish them"
            raise AlreadyExistsError(msg)
        self._subscribers.append(_Subscriber(known_by, kind, cast("Callable[[Any], Awaitable[None]]", handler), group))

    def listener(
        self,
        *,
        group: str | None = None,
        concurrency: int = 1,
        timeout: Seconds | None = None,
        drain_timeout: Seconds = 25,
        on_dead: Callable[[DeadLetter[bytes], BaseException | None], Awaitable[None]] | None = None,
    ) -> Listener[bytes]:
        """Return a listener that calls the subscribers of a group, ``concurrency`` events at a time.

        Run it like any other listener. A group gets the events posted after it joined: see `join`. The listener of a
        group that has not joined logs a warning.

        Args:
            group: the name of the group; None: the subscribers without a group.
            concurrency: the maximum number of events handled at a time.
            timeout: the time limit for all subscribers of an event together, seconds. The subscriber that runs then is
                cancelled. The retry calls it, and those after it.
            drain_timeout: as in `ListenerOptions`.
            on_dead: as for `QueueSession.listener`; the value of the dead letter is the JSON of the event.

        Raises: InvalidNameError, InvalidOptionError, SessionClosedError, WrongLoopError.
        """

        async def handle(delivery: Delivery[bytes]) -> None:
            await self._handle(delivery, group)

        options: ListenerOptions = {"concurrency": concurrency, "timeout": timeout, "drain_timeout": drain_timeout}
        listener = self._session.listener(self.queue(group), handle, on_dead=on_dead, **options)
        if group is not None:
            run_with(listener, partial(self._groups.warn_unless_joined, group))
        return listener

    def queue(self, group: str | None = None) -> Queue[bytes]:
        """The queue of a group, or of the bus itself: its figures, its dead letters. Raises: InvalidNameError."""
        return self._queue(group, self._policy or DEFAULT_POLICY)

    def _queue(self, group: str | None, policy: Policy | None) -> Queue[bytes]:
        queue = self._session.queue(self._paths.queue(group))
        if policy is not None:
            state_of(queue).prefer_policy(policy)
        if self._policy is not None:
            _compare_always(self.name, state_of(queue), self._policy)
        return queue

    async def _handle(self, delivery: Delivery[bytes], group: str | None) -> None:
        try:
            event = self._types.decode(delivery.headers.get(EVENT), delivery.value, self.name)
        except PayloadError as error:
            raise Reject(str(error)) from error
        done = set(delivery.headers.get(DONE, "").split())
        failures: list[Exception] = []
        for subscriber in self._subscribers:
            if subscriber.group != group or subscriber.name in done or not isinstance(event, subscriber.kind):
                continue
            try:
                with foreign_cancellations(f"subscriber {subscriber.name}"):
                    await subscriber.handler(event)
            except Exception as error:
                log.warning(
                    "bus %s: subscriber %s failed on %s",
                    self.name,
                    subscriber.name,
                    delivery.id,
                    exc_info=error,
                    extra={
                        "bus": self.name,
                        "subscriber": subscriber.name,
                        "queue": delivery.queue,
                        "message_id": delivery.id,
                        "attempt": delivery.attempt,
                    },
                )
                failures.append(only_of(error))
            else:
                # From here on this covers every end except the death of the process.
                done.add(subscriber.name)
                add_headers(delivery, {DONE: " ".join(sorted(done))})
        if failures:
            raise _end_for(failures) from failures[0]

    # -- groups

    @changes
    async def join(self, group: str) -> None:
        """Register a subscriber group, unless it exists: it gets every event that any process posts from now on.

        Raises: InvalidOptionError: the names of all groups take more than 64 KiB; InvalidNameError, AccessDeniedError,
        PayloadError, NotCommittedError, OutcomeUnknownError, SessionClosedError, WrongLoopError.
        """
        await self._groups.join(group)

    @changes
    async def leave(self, group: str) -> None:
        """Remove a subscriber group. Its events stay in its queue.

        Raises: NotFoundError: there is no such group; as `join`.
        """
        await self._groups.leave(group)

    @reads
    async def groups(self) -> list[str]:
        """Read the subscriber groups, in the order they joined.

        Raises: AccessDeniedError, PayloadError, ConnectionLostError, SessionClosedError, WrongLoopError.
        """
        core_of(self._session).check()
        return list(await self._groups.stored())

    def __repr__(self) -> str:
        return f"<Bus {self.name!r} of {self._types.base.__name__}>"


def _end_for(failures: Sequence[Exception]) -> Retry | Reject:
    """Return the error by which to settle an event, for those of its subscribers."""
    rejections = [error for error in failures if isinstance(error, Reject)]
    if len(rejections) == len(failures):  # no subscriber must be called again
        return Reject("; ".join(error.reason for error in rejections))
    retries = [error for error in failures if isinstance(error, Retry)]
    retry = next((error for error in retries if error.schedule is not None), retries[0] if retries else None)
    return Retry(
        delay=None if retry is None else retry.delay,
        schedule=None if retry is None else retry.schedule,
        exhausted=None if retry is None else retry.exhausted,
    )


def _compare_always(bus: str, state: QueueState, policy: Policy) -> None:
    """Compare a policy with the stored one, now and after each read of the configuration."""
    policies = _compared.setdefault(state, {})
    if policy not in policies:
        policies[policy] = None
        state.on_configured(partial(_compare, bus, state, policy, policies))
        _compare(bus, state, policy, policies)


def _compare(bus: str, state: QueueState, policy: Policy, policies: dict[Policy, Policy | None]) -> None:
    """Warn, once per session and queue, of a stored policy that differs from the given one."""
    if state.config.policy not in (None, policy, policies[policy]):
        policies[policy] = state.config.policy
        log.warning(
            "bus %s: queue %s uses its stored policy %r instead of %r; change it for all processes with "
            "`await bus.queue().configure(QueueConfig(policy=...))`",
            bus,
            state.name,
            state.config.policy,
            policy,
            extra={"bus": bus, "queue": state.name},
        )
