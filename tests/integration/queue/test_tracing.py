"""OpenTelemetry spans of a message, linked from the put to the handler, in one process and in two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import aiozkqueue as zq
from aiozkqueue.bus import Bus
from aiozkqueue.session.internals import core_of
from aiozkqueue.tracing import OpenTelemetry
from tests.integration.queue.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from opentelemetry.sdk.trace import ReadableSpan

    from aiozkqueue.listeners import Batch
    from tests.integration.queue.conftest import Opener


class Spans:
    """The spans that were exported so far, by name."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("the test")

    @property
    def names(self) -> list[str]:
        return [span.name for span in self._exporter.get_finished_spans()]

    def all(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [span] = self.all(name)
        return span


def _id(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def _trace(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.trace_id)


def _attributes(span: ReadableSpan) -> Mapping[str, Any]:
    assert span.attributes is not None
    return span.attributes


def _linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


@pytest.fixture
def spans() -> Iterator[Spans]:
    spans = Spans()
    yield spans
    spans.provider.shutdown()


@pytest.fixture
async def traced(zookeeper: str, queue_root: str, spans: Spans) -> AsyncIterator[zq.QueueSession]:
    """A session with tracing."""
    tracing = OpenTelemetry(spans.provider)
    async with zq.connect(zookeeper, root=queue_root, session_timeout=20, tracing=tracing) as session:
        yield session


async def _handled(
    queue: zq.Queue[bytes], session: zq.QueueSession, handler: Callable[[zq.Delivery[bytes]], Any]
) -> None:
    """Run a listener until it has handled all messages."""

    async def done() -> bool:
        return await queue.size() == 0

    async with session.listener(queue, handler):
        await eventually(done, 30)


async def test_a_handler_runs_in_the_trace_of_the_put(traced: zq.QueueSession, spans: Spans) -> None:
    jobs = traced.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(0)))
    trace_ids: list[int] = []

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        trace_ids.append(trace.get_current_span().get_span_context().span_id)
        if delivery.attempt == 1:
            msg = "not yet"
            raise RuntimeError(msg)
        delivery.put("results", b"done")

    message_id = await jobs.put(b"12345")
    await _handled(jobs, traced, handler)

    sent = spans.one("send jobs")
    assert sent.kind is SpanKind.PRODUCER
    assert _attributes(sent) == {
        "messaging.system": "aiozkqueue",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "jobs",
        "messaging.message.id": message_id,
    }
    failed, passed = spans.all("process jobs")
    assert [failed.kind, passed.kind] == [SpanKind.CONSUMER] * 2
    assert trace_ids == [_id(failed), _id(passed)]
    assert {_trace(failed), _trace(passed)} == {_trace(sent)}
    for process in (failed, passed):
        assert process.parent is not None
        assert process.parent.span_id == _id(sent)
        assert _linked(process) == [_id(sent)]
        assert _attributes(process)["messaging.message.id"] == message_id
        assert _attributes(process)["messaging.message.body.size"] == 5
    assert [_attributes(process)["messaging.aiozkqueue.message.attempt"] for process in (failed, passed)] == [1, 2]
    assert failed.status.status_code is StatusCode.ERROR
    assert _attributes(failed)["error.type"] == "RuntimeError"
    assert passed.status.status_code is StatusCode.UNSET
    assert _attributes(passed)["messaging.aiozkqueue.outcome"] == "committed"

    created, commit = spans.one("create results"), spans.one("commit")
    assert created.parent is not None
    assert created.parent.span_id == _id(passed)
    assert (commit.kind, commit.parent and commit.parent.span_id) == (SpanKind.CLIENT, _id(passed))
    assert _linked(commit) == [_id(sent), _id(created)]
    assert _attributes(commit)["messaging.operation.type"] == "settle"
    assert _attributes(spans.one("rollback jobs"))["messaging.operation.type"] == "settle"
    [result] = await traced.queue("results").peek()
    carried = trace.get_current_span(propagate.extract(result.headers)).get_span_context()
    assert carried.span_id == _id(created)


class OutOfStockError(Exception):
    """An error class of the program."""


def _outcomes(spans: list[ReadableSpan]) -> list[Any]:
    return [_attributes(span).get("messaging.aiozkqueue.outcome") for span in spans]


def _parents(spans: list[ReadableSpan]) -> list[int | None]:
    return [None if span.parent is None else span.parent.span_id for span in spans]


async def test_each_failed_attempt_has_its_rollback_in_its_span_and_its_true_outcome(
    traced: zq.QueueSession, spans: Spans
) -> None:
    jobs = traced.queue("jobs", policy=zq.ConsumeTimes(3, backoff=zq.Fixed(0)))

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        raise zq.Retry(delay=0) if delivery.attempt == 1 else OutOfStockError

    message_id = await jobs.put(b"1")
    await _handled(jobs, traced, handler)

    processed, rollbacks = spans.all("process jobs"), spans.all("rollback jobs")
    assert _outcomes(processed) == ["rolled_back", "rolled_back", "dead_lettered"]
    assert _outcomes(rollbacks) == _outcomes(processed)
    assert _parents(rollbacks) == [_id(span) for span in processed]
    assert {_trace(span) for span in [*processed, *rollbacks]} == {_trace(spans.one("send jobs"))}
    own = f"{__name__}.OutOfStockError"
    assert [_attributes(span)["error.type"] for span in processed] == ["aiozkqueue.errors.Retry", own, own]
    for span in rollbacks:
        assert span.kind is SpanKind.CLIENT
        assert span.status.status_code is StatusCode.UNSET
        assert _attributes(span)["messaging.operation.type"] == "settle"
        assert _attributes(span)["messaging.message.id"] == message_id
        assert "messaging.batch.message_count" not in _attributes(span)
    tracing = core_of(traced).tracing
    assert isinstance(tracing, OpenTelemetry)
    assert (tracing._handled, tracing._committing) == ({}, {}), "no state of ended spans is left"


async def test_a_reject_is_a_commit_in_the_span_of_its_handler_that_ends_as_a_dead_letter(
    traced: zq.QueueSession, spans: Spans
) -> None:
    jobs = traced.queue("jobs")

    async def handler(_delivery: zq.Delivery[bytes]) -> None:
        msg = "no such teapot"
        raise zq.Reject(msg)

    await jobs.put(b"1")
    await _handled(jobs, traced, handler)
    process, commit = spans.one("process jobs"), spans.one("commit jobs")
    assert _outcomes([process, commit]) == ["dead_lettered"] * 2
    assert _parents([commit]) == [_id(process)]
    assert _attributes(process)["error.type"] == "aiozkqueue.errors.Reject"
    assert process.status.status_code is StatusCode.ERROR
    assert process.end_time is not None
    assert commit.end_time is not None
    assert process.end_time >= commit.end_time


async def test_a_refused_commit_is_rolled_back_in_the_span_of_its_handler(
    traced: zq.QueueSession, spans: Spans
) -> None:
    jobs, others = traced.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(0))), traced.queue("others")
    await others.put(b"1", key="only", unique=True)

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        if delivery.attempt == 1:
            delivery.put("others", b"2", key="only", unique=True)

    await jobs.put(b"1")
    await _handled(jobs, traced, handler)
    refused, passed = spans.all("process jobs")
    assert _outcomes([refused, passed]) == ["rolled_back", "committed"]
    assert _attributes(refused)["error.type"] == "aiozkqueue.errors.DuplicateKeyError"
    [commit], [rollback] = spans.all("commit"), spans.all("rollback jobs")
    assert _parents([commit, rollback]) == [_id(refused)] * 2
    assert _outcomes([commit, rollback]) == ["rolled_back"] * 2
    assert _parents(spans.all("commit jobs")) == [_id(passed)]


async def test_a_batch_settles_each_of_its_messages_in_one_span(traced: zq.QueueSession, spans: Spans) -> None:
    jobs = traced.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(0)))
    await jobs.put_many([b"1", b"2", b"3"])

    async def handler(batch: Batch[bytes]) -> None:
        for message in batch:
            if message.body == b"2" and message.attempt == 1:
                batch.fail(message, OutOfStockError())

    async def done() -> bool:
        return await jobs.size() == 0

    async with traced.listener(jobs, handler, batch=3, batch_wait=5):
        await eventually(done, 30)
    first, last = spans.all("process jobs")
    assert _outcomes([first, last]) == [None, "committed"]
    settled = [*spans.all("commit jobs"), *spans.all("rollback jobs")]
    assert sorted(_outcomes(settled)) == ["committed", "committed", "rolled_back"]
    assert {_id(first), _id(last)} == set(_parents(settled))


async def test_a_loop_handles_each_message_in_its_own_span(traced: zq.QueueSession, spans: Spans) -> None:
    jobs = traced.queue("jobs")
    first, second = await jobs.put_many([b"1", b"2"])
    span_ids: list[int] = []
    async with jobs.consume(until_idle=0) as deliveries:
        async for _delivery in deliveries:
            span_ids.append(trace.get_current_span().get_span_context().span_id)  # noqa: PERF401 - it must run in the body of the loop
    assert not trace.get_current_span().get_span_context().is_valid

    sent = spans.one("send jobs")
    assert _attributes(sent)["messaging.batch.message_count"] == 2
    processed = spans.all("process jobs")
    assert span_ids == [_id(span) for span in processed]
    assert [_attributes(span)["messaging.message.id"] for span in processed] == [first, second]
    assert [_linked(span) for span in processed] == [[_id(sent)]] * 2
    assert [span.parent and span.parent.span_id for span in spans.all("commit jobs")] == span_ids
    assert _outcomes(processed) == ["committed"] * 2, "a span ends only after the commit of its message"


async def test_a_loop_that_is_left_with_an_error_ends_its_span_with_it(traced: zq.QueueSession, spans: Spans) -> None:
    jobs = traced.queue("jobs")
    await jobs.put(b"1")
    with pytest.raises(RuntimeError):
        async with jobs.consume(until_idle=0) as deliveries:
            async for _delivery in deliveries:
                raise RuntimeError
    assert not trace.get_current_span().get_span_context().is_valid
    process = spans.one("process jobs")
    assert _attributes(process)["error.type"] == "RuntimeError"
    assert _attributes(process)["messaging.aiozkqueue.outcome"] == "rolled_back"


async def test_a_handler_within_another_span_is_its_child_and_links_to_the_put(
    traced: zq.QueueSession, spans: Spans
) -> None:
    jobs = traced.queue("jobs")
    await jobs.put(b"1")
    with spans.tracer.start_as_current_span("run") as run:
        async with jobs.consume(until_idle=0) as deliveries:
            async for _delivery in deliveries:
                pass
        assert trace.get_current_span() is run
    process = spans.one("process jobs")
    assert process.parent is not None
    assert process.parent.span_id == run.get_span_context().span_id
    assert _linked(process) == [_id(spans.one("send jobs"))]


async def test_a_transaction_receives_creates_and_commits(traced: zq.QueueSession, spans: Spans) -> None:
    jobs = traced.queue("jobs")
    await jobs.put_many([b"1", b"2", b"3"])
    with spans.tracer.start_as_current_span("work") as work:
        async with traced.transaction() as tx:
            assert await tx.take(jobs) is not None
            assert len(await tx.take_many(jobs, 2)) == 2
            tx.put("results", b"done")
    single, batch = spans.all("receive jobs")
    assert single.kind is SpanKind.CLIENT
    assert "messaging.message.id" in _attributes(single)
    assert _attributes(batch)["messaging.batch.message_count"] == 2
    sent = _id(spans.one("send jobs"))
    assert (_linked(single), _linked(batch)) == ([sent], [sent, sent])
    commit = spans.one("commit")
    assert _attributes(commit)["messaging.aiozkqueue.transaction.id"] == tx.id
    assert _attributes(commit)["messaging.batch.message_count"] == 4
    inside = work.get_span_context().span_id
    for span in (single, batch, commit, spans.one("create results")):
        assert (span.parent and span.parent.span_id) == inside


async def test_a_put_that_is_refused_ends_its_span_with_the_error(traced: zq.QueueSession, spans: Spans) -> None:
    jobs = traced.queue("jobs")
    await jobs.put(b"1", key="only", unique=True)
    with pytest.raises(zq.DuplicateKeyError):
        await jobs.put(b"2", key="only", unique=True)
    assert _attributes(spans.all("send jobs")[1])["error.type"] == "aiozkqueue.errors.DuplicateKeyError"


async def test_an_existing_context_in_the_headers_is_kept(traced: zq.QueueSession, spans: Spans) -> None:
    jobs = traced.queue("jobs")
    own = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "other": "kept"}
    await jobs.put(b"1", headers=own)
    async with traced.transaction() as tx:
        tx.put(jobs, b"2", headers=own)
    assert [dict(message.headers) for message in await jobs.peek()] == [own, own]
    assert _linked(spans.one("send jobs")) == [0xB7AD6B7169203331]
    assert _linked(spans.one("commit jobs")) == [0xB7AD6B7169203331]
    assert "create jobs" not in spans.names


async def test_a_message_posted_by_a_bus_is_traced_too(traced: zq.QueueSession, spans: Spans) -> None:
    from pydantic import BaseModel  # noqa: PLC0415 - needed only by this test

    class Event(BaseModel):
        id: int

    bus = Bus(traced, "orders", Event)
    await bus.post(Event(id=1))
    [created] = [name for name in spans.names if name.startswith("create ")]
    assert spans.one(created).kind is SpanKind.PRODUCER


async def test_a_program_without_tracing_set_up_is_not_traced(open_session: Opener, session: zq.QueueSession) -> None:
    assert core_of(session).tracing is None
    await session.queue("jobs").put(b"bare")
    [message] = await (await open_session()).queue("jobs").peek()
    assert dict(message.headers) == {}


# A user's program, which only sets up a provider: it puts or handles a message and prints the exported spans.
PROGRAM = """
import asyncio, json, os, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
import aiozkqueue as zq


class Printed(SpanExporter):
    def export(self, spans):
        for span in spans:
            links = [f"{link.context.trace_id:032x}" for link in span.links]
            print(json.dumps([span.name, f"{span.context.trace_id:032x}", links]), flush=True)
        return SpanExportResult.SUCCESS


async def main():
    async with zq.connect(os.environ["HOSTS"], root=os.environ["ROOT"]) as session:
        jobs = session.queue("jobs")
        if sys.argv[1] == "put":
            await jobs.put(b"1")
            return

        async def handler(delivery):
            listener.stop()

        listener = session.listener(jobs, handler)
        await listener.run()


trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(Printed()))
asyncio.run(main())
"""


def test_two_processes_share_one_trace(zookeeper: str, queue_root: str) -> None:
    environment = os.environ | {"HOSTS": zookeeper, "ROOT": queue_root}
    exported: list[list[Any]] = []
    for role in ("put", "handle"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, role],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=150,
        )
        exported += [json.loads(line) for line in done.stdout.splitlines()]
    sent, *rest = exported
    assert sent[0] == "send jobs"
    process = next(span for span in rest if span[0] == "process jobs")
    assert process[1:] == [sent[1], [sent[1]]]
