"""The trace of a request continues with its messages."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from opentelemetry.sdk.trace import TracerProvider

from aiozkqueue.http.core.trace_context import trace_context

if TYPE_CHECKING:
    import aiozkqueue as zq
    from tests.http.conftest import Service

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("path", "body"), [("q/send", 1), ("q/sendbatch", [1]), ("_sendbatch", {"q": [1]})], ids=["one", "batch", "batches"]
)
async def test_a_message_keeps_the_trace_of_its_request(
    service: Service, session: zq.QueueSession, path: str, body: object
) -> None:
    trace = {"traceparent": PARENT, "tracestate": "vendor=1,other=2"}
    sent = await service.post(f"/queue/1/{path}", json=body, headers={**trace, "baggage": "user=1"})
    assert sent.status_code == 200, sent.text
    (stored,) = await session.queue("q").peek()
    assert stored.headers == trace
    (polled,) = await service.poll("q")
    assert polled["payload"] == 1


async def test_equal_messages_of_two_traces_collapse(service: Service) -> None:
    for digit in "12":
        trace = {"traceparent": PARENT.replace("c-", f"{digit}-")}
        await service.post("/dedupq/1/q/send", json=1, headers=trace)
    polled = await service.get("/dedupq/1/q/poll")
    assert [message["payload"] for message in polled.json()] == [1]


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "x",
        PARENT.upper(),
        PARENT + "-",
        "ff" + PARENT[2:],
        PARENT.replace("b7ad6b7169203331", "0" * 16),
        PARENT[:-1],
    ],
)
async def test_a_malformed_trace_is_not_stored(service: Service, session: zq.QueueSession, parent: str) -> None:
    await service.post("/queue/1/q/send", json=1, headers={"traceparent": parent, "tracestate": "vendor=1"})
    (stored,) = await session.queue("q").peek()
    assert not stored.headers


async def test_a_trace_that_this_program_continues_itself_is_left_to_its_spans() -> None:
    provider = await asyncio.to_thread(TracerProvider, shutdown_on_exit=False)  # it waits for threads
    headers = {"traceparent": PARENT, "tracestate": "x" * 513}
    with provider.get_tracer("test").start_as_current_span("POST"):
        assert trace_context(headers) == {}
    assert trace_context(headers) == {"traceparent": PARENT}
