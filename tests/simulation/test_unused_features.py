"""A feature costs nothing for queues that do not use it: no request, no operation, no byte."""

from __future__ import annotations

from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.testing.simulator import Cluster, Ensemble, Request, run_virtual
from benchmarks.features import all_in_use
from benchmarks.ours import nothing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from benchmarks.ours import OtherWork


@pytest.fixture(autouse=True)
def _no_listing_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevent restarts of listings, which the client draws from one sequence for all queues of a session."""
    monkeypatch.setattr("aiozkqueue.testing.simulator.client._GIVEN_UP", 0)


def requests_of_a_plain_queue(other_work: OtherWork) -> list[tuple[object, ...]]:
    """Return the requests for twenty messages of a plain queue, from put to commit, without ids."""

    async def main() -> list[tuple[object, ...]]:
        trace: list[tuple[object, ...]] = []
        cluster = Cluster(Ensemble(Random("plain"), trace=trace), "plain")
        async with cluster.connect(name="client") as session:
            plain = session.queue("plain")
            await plain.put(b"the first makes the queue")
            async with session.transaction() as tx:
                assert await tx.take(plain) is not None
            async with other_work(session):
                before = len(trace)
                for _ in range(10):
                    await plain.put(b"body")
                await plain.put_many([b"body"] * 10)
                for _ in range(10):
                    async with session.transaction() as tx:
                        assert await tx.take(plain) is not None
                        tx.put(plain, b"result")
                async with plain.consume(until_idle=0) as deliveries:
                    assert len([delivery async for delivery in deliveries]) == 20
                return [shape for _, _, request, _ in trace[before:] if (shape := shape_of(request)) is not None]

    return run_virtual(main)


def shape_of(request: object) -> tuple[object, ...] | None:
    """Describe a request without ids and times; None if it does not concern the plain queue."""
    assert isinstance(request, Request)
    paths = [request.argument] if isinstance(request.argument, str) else list(request.argument or ())
    if not any("/plain" in str(getattr(operation, "path", operation)) for operation in paths):
        return None
    return request.kind, tuple(
        (type(operation).__name__, folder(str(getattr(operation, "path", operation)))) for operation in paths
    )


def folder(path: str) -> str:
    return path.rpartition("/")[0]


def test_features_of_other_queues_add_no_requests_for_a_plain_queue() -> None:
    alone = requests_of_a_plain_queue(nothing)
    assert len(alone) > 60
    assert requests_of_a_plain_queue(all_in_use) == alone


def test_a_feature_of_the_plain_queue_itself_changes_its_requests() -> None:
    @asynccontextmanager
    async def history(session: zq.QueueSession) -> AsyncIterator[None]:
        await session.queue("plain").configure(zq.QueueConfig(history=zq.History()))
        yield

    assert requests_of_a_plain_queue(history) != requests_of_a_plain_queue(nothing)
