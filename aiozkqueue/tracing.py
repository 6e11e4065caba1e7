"""OpenTelemetry: spans for puts, takes, handlers and commits, linked through the messages' headers across processes.

Needs the extra ``observability``. `aiozkqueue.connect` imports this module if the program has set up a tracer provider,
or with ``tracing=True``. Names and attributes follow OpenTelemetry's semantic conventions for messaging.

=================== ======== ==================================================================================
span                kind     covers
=================== ======== ==================================================================================
``send <queue>``    producer `Queue.put` and `put_many`, until the messages are stored
``create <queue>``  producer a message put by a transaction, a delivery, a bus or a schedule; their commit sends it
``receive <queue>`` client   `Transaction.take` and `take_many` that returned messages
``process <queue>`` consumer a listener's handler, for a message or a batch, or the body of a loop over
                             ``Queue.consume()``; until the messages are settled
``commit``          client   the commit of a transaction or delivery, until its outcome is known
``rollback``        client   the release of messages after a failure; a message whose attempts are used up becomes a
                             dead letter
=================== ======== ==================================================================================

``process`` and the spans that settle have the outcome of their messages in ``messaging.aiozkqueue.outcome``:
``committed``, ``rolled_back``, ``dead_lettered`` or ``unknown``. It is absent if the messages of a batch differ.

A message has the context of its ``send`` or ``create`` in its headers, unless they already contain a context. A
``process`` span links to that context, and is its child if no other span is current. Leases (`Queue.leases`) are not
traced.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Literal

from aiozkqueue.errors import OutcomeUnknownError
from aiozkqueue.extras import needs
from aiozkqueue.layout import MalformedError, decode
from aiozkqueue.queue.outcome import Outcome
from aiozkqueue.session.failures import decision_of

with needs("observability"):
    from opentelemetry import context, propagate, trace
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, TracerProvider

    from aiozkqueue.queue.commit.dispositions import Disposition
    from aiozkqueue.queue.commit.put import Put
    from aiozkqueue.queue.commit.write import AtomicWrite
    from aiozkqueue.queue.message import Message
    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.session.tracing import Handling, Traced

__all__ = ["OpenTelemetry"]

_SYSTEM: Final = "aiozkqueue"
_ATTEMPT: Final = "messaging.aiozkqueue.message.attempt"
_OUTCOME: Final = "messaging.aiozkqueue.outcome"
_TRANSACTION: Final = "messaging.aiozkqueue.transaction.id"

#: The outcome of a message, by the kind of its disposition.
_ENDS: Final = {"consume": "committed", "release": "rolled_back", "dead": "dead_lettered"}

#: The span of this task's current put. Its messages have its context.
_sending: ContextVar[tuple[Span, bool] | None] = ContextVar("aiozkqueue_sending", default=None)


class OpenTelemetry:
    """Traces a session's messages: ``connect(..., tracing=OpenTelemetry(provider))``.

    The default is the program's global provider.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer(__name__, tracer_provider=provider)
        self._handled: dict[str, _Handling] = {}
        """The handling of each held message, by its id."""
        self._committing: dict[str, Context] = {}
        """Where each commit in flight began, by its transaction."""

    # -- producers

    @contextmanager
    def sending(self, queue: str, count: int | None) -> Iterator[None]:
        """See `Tracing`."""
        attributes = _attributes("send", "send", queue)
        if count is not None:
            attributes["messaging.batch.message_count"] = count
        with self._tracer.start_as_current_span(
            f"send {queue}", kind=SpanKind.PRODUCER, attributes=attributes, record_exception=False
        ) as span:
            token = _sending.set((span, count is None))
            try:
                yield
            except BaseException as error:
                _fail(span, error)
                raise
            finally:
                _sending.reset(token)

    def creating(self, queue: str, message_id: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `Tracing`."""
        given: Any = options.get("headers") or {}
        if not hasattr(given, "items"):
            return options  # the check of the options refuses the headers
        headers: dict[str, str] = dict(given)
        own, sent = _creation(headers), _sending.get()
        if sent is not None:
            span, single = sent
            if single:
                span.set_attribute("messaging.message.id", message_id)
            if own is None:
                propagate.inject(headers)
            else:
                span.add_link(own)
        elif own is None:
            attributes = _attributes("create", "create", queue)
            attributes["messaging.message.id"] = message_id
            span = self._tracer.start_span(f"create {queue}", kind=SpanKind.PRODUCER, attributes=attributes)
            propagate.inject(headers, trace.set_span_in_context(span))
            span.end()
        return {**options, "headers": headers} if headers else options

    # -- transactions

    def received(self, queue: str, messages: Sequence[Message[Any]], begun: int) -> None:
        """See `Tracing`."""
        attributes = _attributes("receive", "receive", queue)
        if len(messages) == 1:
            attributes["messaging.message.id"] = messages[0].id
        else:
            attributes["messaging.batch.message_count"] = len(messages)
        self._tracer.start_span(
            f"receive {queue}",
            kind=SpanKind.CLIENT,
            attributes=attributes,
            links=_links(message.headers for message in messages),
            start_time=begun,
        ).end()

    def settling(
        self,
        operation: Literal["commit", "rollback"],
        work_id: str,
        claims: Mapping[Claim, Disposition],
        puts: Sequence[Put],
        sent: AtomicWrite,
    ) -> None:
        """See `Tracing`."""
        queues = {claim.state.name for claim in claims} | {put.state.name for put in puts}
        only = queues.pop() if len(queues) == 1 else None
        attributes = _attributes(operation, "settle" if claims else "send", only)
        if len(claims) == 1 and not puts:
            attributes["messaging.message.id"] = next(iter(claims)).id
        else:
            attributes["messaging.batch.message_count"] = len(claims) + len(puts)
        attributes[_TRANSACTION] = work_id
        # A rollback after a refused commit belongs where the commit does, wherever the refusal arrives.
        inside = self._committing.get(work_id) or context.get_current()
        span = self._tracer.start_span(
            f"{operation} {only}" if only else operation,
            inside,
            kind=SpanKind.CLIENT,
            attributes=attributes,
            links=_links([*(claim.header.headers for claim in claims), *map(_headers, puts)]),
        )
        if operation == "commit":
            self._committing[work_id] = inside
        ends = {claim.id: disposition.kind for claim, disposition in claims.items()}
        handlings = {handling for message in ends if (handling := self._handled.get(message)) is not None}
        for handling in handlings:
            handling.await_end(sent)

        def over(settled: AtomicWrite) -> None:
            if operation == "commit":
                self._committing.pop(work_id, None)
            outcomes = {message: _outcome(kind, settled.error) for message, kind in ends.items()}
            if len(found := set(outcomes.values()) or {_outcome("consume", settled.error)}) == 1:
                span.set_attribute(_OUTCOME, found.pop())
            if settled.error is not None:
                _fail(span, settled.error)
            span.end()
            for handling in handlings:
                handling.settled(settled, outcomes)

        sent.watch(over)

    # -- consumers

    def handling(self, delivery: Traced) -> Handling:
        """See `Tracing`."""
        attributes = _attributes("process", "process", delivery.queue)
        attributes["messaging.message.id"] = delivery.id
        attributes["messaging.message.body.size"] = len(delivery.body)
        attributes[_ATTEMPT] = delivery.attempt
        ambient = context.get_current()
        if not trace.get_current_span(ambient).get_span_context().is_valid:
            ambient = propagate.extract(delivery.headers, ambient)
        span = self._process(delivery.queue, attributes, [delivery.headers], ambient)
        return _Handling(span, ambient, self._handled, [delivery.id], lambda: delivery.outcome)

    def processing(self, queue: str, messages: Sequence[Message[Any]]) -> Handling:
        """See `Tracing`."""
        attributes = _attributes("process", "process", queue)
        attributes["messaging.batch.message_count"] = len(messages)
        ambient = context.get_current()
        span = self._process(queue, attributes, [message.headers for message in messages], ambient)
        ids = [message.id for message in messages]
        return _Handling(span, ambient, self._handled, ids, lambda: Outcome.ROLLED_BACK)

    def _process(
        self, queue: str, attributes: dict[str, str | int], headers: Iterable[Mapping[str, str]], ambient: Context
    ) -> Span:
        return self._tracer.start_span(
            f"process {queue}", ambient, kind=SpanKind.CONSUMER, attributes=attributes, links=_links(headers)
        )


class _Handling:
    """The ``process`` span of a delivery or a batch.

    It is current until the handling ends, and ends when the writes that settle its messages are settled.
    """

    def __init__(
        self,
        span: Span,
        ambient: Context,
        handled: dict[str, _Handling],
        ids: Sequence[str],
        unsettled: Callable[[], Outcome],
    ) -> None:
        self._span = span
        self._handled = handled
        self._outcomes: dict[str, str | None] = dict.fromkeys(ids)
        self._unsettled = unsettled
        """Returns the outcome of messages that no write has settled."""
        self._writes: set[AtomicWrite] = set()
        self._over = False
        handled |= dict.fromkeys(ids, self)
        self._before = context.get_current()
        context.attach(trace.set_span_in_context(span, ambient))

    def end(self, error: BaseException | None = None) -> None:
        """See `Handling`."""
        # A loop may continue in another task, in which this span was never current.
        if trace.get_current_span() is self._span:
            context.attach(self._before)
        if error is not None:
            _fail(self._span, error)
        self._over = True
        self._finish()

    def await_end(self, write: AtomicWrite) -> None:
        """Wait for the end of a write that settles some of the messages."""
        self._writes.add(write)

    def settled(self, write: AtomicWrite, outcomes: Mapping[str, str]) -> None:
        """Record the outcomes of messages after a write has ended."""
        self._writes.discard(write)
        self._outcomes.update((message, outcome) for message, outcome in outcomes.items() if message in self._outcomes)
        self._finish()

    def _finish(self) -> None:
        if not self._over or self._writes:
            return
        for message in self._outcomes:
            if self._handled.get(message) is self:
                del self._handled[message]
        outcomes = {outcome or self._unsettled().name.lower() for outcome in self._outcomes.values()}
        if len(outcomes) == 1:
            self._span.set_attribute(_OUTCOME, outcomes.pop())
        self._span.end()


def _outcome(kind: str, error: BaseException | None) -> str:
    """Return the fate of a message, by its disposition and the error of the write."""
    if error is None:
        return _ENDS.get(kind, "removed")
    return "unknown" if isinstance(error, OutcomeUnknownError) else "rolled_back"


def _attributes(operation: str, kind: str, queue: str | None) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "messaging.system": _SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
    }
    if queue is not None:
        attributes["messaging.destination.name"] = queue
    return attributes


def _fail(span: Span, error: BaseException) -> None:
    kind = type(error)
    named = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    span.set_attribute("error.type", named)
    if (decision := decision_of(error)) is not None:
        span.set_status(Status(StatusCode.ERROR, type(decision).__name__))
        return
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))


def _creation(headers: Mapping[str, str]) -> SpanContext | None:
    """Return the context in a message's headers, if there is one."""
    found = trace.get_current_span(propagate.extract(headers, context.Context())).get_span_context()
    return found if found.is_valid else None


def _links(carriers: Iterable[Mapping[str, str]]) -> list[Link]:
    return [Link(found) for found in map(_creation, carriers) if found is not None]


def _headers(put: Put) -> Mapping[str, str]:
    if put.state.dialect is not None:
        return {}
    try:
        return decode(put.data)[0].headers
    except MalformedError:  # the message is moved unchanged
        return {}
