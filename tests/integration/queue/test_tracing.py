"""OpenTelemetry spans, linked from the put to the handler through the message's headers."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags

import aiozkqueue as zq
from aiozkqueue.tracing import sending, traced
from tests.integration.queue.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator


class Recorder:
    """Stands for an SDK: spans have ids of their own, in the trace of their parent."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []

    @contextmanager
    def start_as_current_span(self, name: str, context: Any = None, **given: Any) -> Iterator[None]:
        parent = trace.get_current_span(context).get_span_context()
        own = SpanContext(
            parent.trace_id if parent.is_valid else random.getrandbits(128) | 1,
            random.getrandbits(64) | 1,
            is_remote=False,
            trace_flags=TraceFlags(1),
        )
        span: dict[str, Any] = {"name": name, "parent": parent, "context": own, "error": None, **given}
        self.spans.append(span)
        try:
            with trace.use_span(NonRecordingSpan(own)):
                yield
        except BaseException as error:
            span["error"] = error
            raise


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(trace, "get_tracer", lambda _name: recorder)
    return recorder


async def test_what_a_handler_does_belongs_to_the_trace_of_the_put(
    session: zq.QueueSession, recorder: Recorder
) -> None:
    jobs = session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(0)))
    seen: list[int] = []

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        seen.append(trace.get_current_span().get_span_context().trace_id)
        if delivery.attempt == 1:
            msg = "not yet"
            raise RuntimeError(msg)

    async def done() -> bool:
        return len(seen) == 2 and await jobs.size() == 0

    with sending("jobs") as headers:
        message_id = await jobs.put(b"12345", headers=headers)
    async with session.listener(jobs, handler, middleware=[traced]):
        await eventually(done, 30)
    sent, first, second = recorder.spans
    assert (sent["name"], sent["kind"]) == ("send jobs", SpanKind.PRODUCER)
    assert [span["name"] for span in (first, second)] == ["process jobs"] * 2
    assert second["kind"] is SpanKind.CONSUMER
    assert seen == [sent["context"].trace_id] * 2
    assert second["parent"].span_id == sent["context"].span_id
    assert second["links"][0].context.span_id == sent["context"].span_id
    assert second["attributes"]["messaging.message.id"] == message_id
    assert second["attributes"]["messaging.message.body.size"] == 5
    assert second["attributes"]["messaging.aiozkqueue.attempt"] == 2
    assert isinstance(first["error"], RuntimeError)
    assert second["error"] is None


async def test_a_message_of_nobody_who_traces_begins_a_trace(session: zq.QueueSession, recorder: Recorder) -> None:
    jobs = session.queue("jobs")

    async def handler(_delivery: zq.Delivery[bytes]) -> None:
        pass

    async def done() -> bool:
        return await jobs.size() == 0

    await jobs.put(b"1")
    async with session.listener(jobs, handler, middleware=[traced]):
        await eventually(done, 30)
    [span] = recorder.spans
    assert span["links"] is None
