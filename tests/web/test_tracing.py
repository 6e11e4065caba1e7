"""OpenTelemetry's own instrumentation of FastAPI together with ours: one trace from the request to the handler."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest
from fastapi import FastAPI
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

import aiozkqueue as zq
from aiozkqueue.fastapi import TransactionDep, get_session
from aiozkqueue.tracing import OpenTelemetry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import ReadableSpan


def _parent(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> Iterator[TracerProvider]:
    """Created in a thread, because it waits for the threads in which it asks about the machine."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider
    provider.shutdown()


async def test_a_message_put_by_a_request_is_handled_in_the_requests_trace(
    zookeeper: str, queue_root: str, exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    app = FastAPI()

    @app.post("/orders", status_code=202)
    async def create(tx: TransactionDep) -> str:
        return tx.put("orders", b"order")

    async def handler(_delivery: zq.Delivery[bytes]) -> None:
        listener.stop()

    FastAPIInstrumentor.instrument_app(app, tracer_provider=provider)
    tracing = OpenTelemetry(provider)
    async with zq.connect(zookeeper, root=queue_root, session_timeout=20, tracing=tracing) as session:
        app.dependency_overrides[get_session] = lambda: session
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
            assert (await client.post("/orders")).status_code == 202
        listener = session.listener(session.queue("orders"), handler)
        await listener.run()

    spans = exporter.get_finished_spans()
    [server] = [span for span in spans if span.kind is SpanKind.SERVER]
    [created] = [span for span in spans if span.name == "create orders"]
    commit, _ = [span for span in spans if span.name == "commit orders"]
    [process] = [span for span in spans if span.name == "process orders"]
    own = server.get_span_context()
    assert own is not None
    # The commit is part of the request, before the response.
    assert (_parent(created), _parent(commit)) == (own.span_id, own.span_id)
    sending = [span for span in spans if span.name == "POST /orders http send"]
    assert commit.end_time is not None
    assert all(span.start_time is not None and commit.end_time <= span.start_time for span in sending)
    assert len(sending) > 0
    made = created.get_span_context()
    assert made is not None
    assert _parent(process) == made.span_id
    assert [link.context.span_id for link in process.links] == [made.span_id]
