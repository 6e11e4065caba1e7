"""OpenTelemetry: spans for puts, takes, handlers and commits, linked through the messages' headers across processes.

Needs the extra ``observability``. `aiozkqueue.connect` imports this module if the program has set up a tracer provider,
or with ``tracing=True``. Names and attributes follow OpenTelemetry's semantic conventions for messaging.

=================== ======== ==================================================================================
span                kind     is
=================== ======== ==================================================================================
``send <queue>`` producer `Queue.put` and `put_many`, until stored
``create <queue>``  producer a message put by a transaction, a delivery, a bus or a schedule: sent by their commit
``receive <queue>`` client   `Transaction.take` and `take_many`, when they got something
``process <queue>`` consumer a listener's handler and its commit; the body of a loop over ``Queue.consume()``
``commit``          client   the commit of a transaction or delivery, from its submission to its outcome
``rollback``        client   the same, when it gives messages back
=================== ======== ==================================================================================

A message has the context of its ``send`` or ``create`` in its headers, unless they already contain a context. A
``process`` span links to that context, and is its child if no other span is current. Leases (`Queue.leases`) are not
traced.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Literal

from aiozkqueue.errors import Reject, Retry
from aiozkqueue.extras import needs
from aiozkqueue.layout import MalformedError, decode
from aiozkqueue.queue.outcome import Outcome

with needs("observability"):
    from opentelemetry import context, propagate, trace
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, TracerProvider

    from aiozkqueue.queue.commit.puts import Put
    from aiozkqueue.queue.commit.write import AtomicWrite
    from aiozkqueue.queue.message import Message
    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.queue.tracing import Traced

__all__ = ["OpenTelemetry"]

_SYSTEM: Final = "aiozkqueue"
_ATTEMPT: Final = "messaging.aiozkqueue.message.attempt"
_OUTCOME: Final = "messaging.aiozkqueue.outcome"
_TRANSACTION: Final = "messaging.aiozkqueue.transaction.id"

#: The span of this task's current put. Its messages have its context.
_sending: ContextVar[tuple[Span, bool] | None] = ContextVar("aiozkqueue_sending", default=None)


class OpenTelemetry:
    """Traces a session's messages: ``connect(..., tracing=OpenTelemetry(provider))``.

    The default is the program's global provider.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer(__name__, tracer_provider=provider)

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
        claims: Iterable[Claim],
        puts: Sequence[Put],
        sent: AtomicWrite,
    ) -> None:
        """See `Tracing`."""
        held = list(claims)
        queues = {claim.state.name for claim in held} | {put.state.name for put in puts}
        only = queues.pop() if len(queues) == 1 else None
        attributes = _attributes(operation, "settle" if held else "send", only)
        attributes["messaging.batch.message_count"] = len(held) + len(puts)
        attributes[_TRANSACTION] = work_id
        span = self._tracer.start_span(
            f"{operation} {only}" if only else operation,
            kind=SpanKind.CLIENT,
            attributes=attributes,
            links=_links([*(claim.header.headers for claim in held), *map(_headers, puts)]),
        )

        def over(settled: AtomicWrite) -> None:
            if settled.error is not None:
                _fail(span, settled.error)
            span.end()

        sent.watch(over)

    # -- consumers

    def handling(self, delivery: Traced) -> _Handling:
        """See `Tracing`."""
        return _Handling(delivery, *self._process(delivery))

    async def around(self, delivery: Traced, call_next: Callable[[], Awaitable[None]]) -> None:
        """See `Tracing`."""
        handling = self.handling(delivery)
        try:
            await call_next()
            if delivery.outcome is Outcome.OPEN:
                await delivery.commit()
        except BaseException as error:
            handling.end(error)
            raise
        handling.end()

    def _process(self, delivery: Traced) -> tuple[Span, Context]:
        attributes = _attributes("process", "process", delivery.queue)
        attributes["messaging.message.id"] = delivery.id
        attributes["messaging.message.body.size"] = len(delivery.body)
        attributes[_ATTEMPT] = delivery.attempt
        ambient = context.get_current()
        if not trace.get_current_span(ambient).get_span_context().is_valid:
            ambient = propagate.extract(delivery.headers, ambient)
        span = self._tracer.start_span(
            f"process {delivery.queue}",
            ambient,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=_links([delivery.headers]),
        )
        return span, trace.set_span_in_context(span, ambient)


class _Handling:
    """The ``process`` span of a delivery, which is current until it ends."""

    def __init__(self, delivery: Traced, span: Span, inside: Context) -> None:
        self._delivery = delivery
        self._span = span
        self._before = context.get_current()
        context.attach(inside)

    def end(self, error: BaseException | None = None) -> None:
        """See `Handling`."""
        # A loop may continue in another task, in which this span was never current.
        if trace.get_current_span() is self._span:
            context.attach(self._before)
        if error is not None:
            _fail(self._span, error)
        self._span.set_attribute(_OUTCOME, self._delivery.outcome.value)
        self._span.end()


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
    span.set_attribute("error.type", type(error).__qualname__)
    if isinstance(error, Retry | Reject):  # asked for
        span.set_status(Status(StatusCode.ERROR, type(error).__name__))
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
