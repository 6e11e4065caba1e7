"""OpenTelemetry spans for puts and for handled messages, linked through the messages' headers across processes.

Needs the extra ``observability``; nothing else of the package imports this. By the semantic conventions for messaging.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import propagate, trace
from opentelemetry.trace import Link, SpanKind

from aiozkqueue import Outcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from aiozkqueue import Delivery

__all__ = ["sending", "traced"]

_SYSTEM: Final = "aiozkqueue"


@contextmanager
def sending(queue: str) -> Iterator[dict[str, str]]:
    """Open a producer span around a put to a queue; yields the headers to put the message with.

    ``with sending("orders") as headers: await orders.put(order, headers=headers)``.
    """
    headers: dict[str, str] = {}
    with trace.get_tracer(__name__).start_as_current_span(
        f"send {queue}", kind=SpanKind.PRODUCER, attributes=_attributes("send", queue)
    ):
        propagate.inject(headers)
        yield headers


async def traced(delivery: Delivery[Any], call_next: Callable[[], Awaitable[None]]) -> None:
    """Open a consumer span around handler and commit: a middleware for `QueueSession.listener`.

    It belongs to the trace of the put, as far as the message's headers tell of one, and links to the put's span. An
    error of the handler, or of the commit, is the span's.
    """
    put = propagate.extract(delivery.headers)
    origin = trace.get_current_span(put).get_span_context()
    attributes = _attributes("process", delivery.queue)
    attributes["messaging.message.id"] = delivery.id
    attributes["messaging.message.body.size"] = len(delivery.body)
    attributes["messaging.aiozkqueue.attempt"] = delivery.attempt
    with trace.get_tracer(__name__).start_as_current_span(
        f"process {delivery.queue}",
        context=put,
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        links=[Link(origin)] if origin.is_valid else None,
    ):
        await call_next()
        if delivery.outcome is Outcome.OPEN:
            await delivery.commit()


def _attributes(operation: str, queue: str) -> dict[str, str | int]:
    return {
        "messaging.system": _SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": queue,
    }
