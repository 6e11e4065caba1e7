"""The life of a message, as `aiozkqueue why` shows it."""

from __future__ import annotations

import asyncio
import os
import socket
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import aiozkqueue as zq
from aiozkqueue.cli.why import _waiting

if TYPE_CHECKING:
    from aiozkqueue.admin import QueueStats
    from tests.cli.conftest import Cli


async def _why(cli: Cli, message_id: str) -> tuple[str, list[str], str]:
    [record] = (await asyncio.to_thread(cli, "why", "q", message_id, "--json")).records
    events: list[dict[str, Any]] = record["events"]
    return record["status"], [event["what"] for event in events], record["now"]


async def test_why_shows_each_step_of_a_message_with_client_and_reason(
    cli: Cli, zookeeper: str, queue_root: str
) -> None:
    async with zq.connect(zookeeper, root=queue_root) as session:
        queue = session.queue("q")
        await queue.configure(zq.QueueConfig(history=zq.History(), policy=zq.ConsumeTimes(2, backoff=zq.Fixed(0.05))))
        message_id = await queue.put(b"x")
        status, events, now = await _why(cli, message_id)
        assert (status, now) == ("waiting", "waiting: the queue has no consumers")
        assert len(events) == 1
        assert events[0].startswith("put by ")
        assert ", process " in events[0]

        async with session.transaction(autocommit=False) as tx:
            assert await tx.take(queue, timeout=30)
            await queue.configure(zq.QueueConfig(paused=True))
            status, events, now = await _why(cli, message_id)
            assert status == "in flight"
            assert events[-1].startswith("claimed by ")
            assert events[-2] == "delivered at least once, perhaps counting the current delivery"
            assert "has not settled it yet" in now
            dump = f"`aiozkqueue dump {os.getpid()}` on {socket.gethostname()} shows where its handler waits"
            assert now.endswith(f"; if that is a worker, {dump}")
            await tx.rollback(delay=0)
        status, _, now = await _why(cli, message_id)
        assert (status, now) == ("waiting", "waiting: the queue is paused; `aiozkqueue resume q` resumes it")

        await queue.configure(zq.QueueConfig(paused=False))
        async with session.transaction(autocommit=False) as tx:
            message = await tx.take(queue, timeout=30)
            assert message is not None
            tx.reject(message, "the bank is closed")
            await tx.commit()
        status, events, now = await _why(cli, message_id)
        assert status == "dead-lettered"
        assert events[-1].startswith("dead-lettered, delivered ")
        assert events[-1].endswith(": the bank is closed")
        assert events[-2].startswith("claimed by ")
        assert now == f"dead letter: `aiozkqueue dlq redrive q {message_id}` puts it back"

        await queue.dead_letters.redrive()
        async with session.transaction() as tx:
            assert await tx.take(queue, timeout=30)
        status, events, _ = await _why(cli, message_id)
        assert status == "finished"
        # The dead-lettering is still one of the events.
        assert [event.partition(",")[0] for event in events if "delivered at" in event] == ["dead-lettered", "finished"]
    assert message_id not in (await asyncio.to_thread(cli, "why", "q", message_id)).stderr
    assert "the bank is closed" in (await asyncio.to_thread(cli, "why", "q", message_id)).text


def test_why_reports_an_unknown_message(cli: Cli) -> None:
    cli("put", "q", "x")
    nothing = cli("why", "q", "nobody", "--json")
    assert (nothing.status, nothing.records[0]["status"]) == (1, "unknown")
    assert "`aiozkqueue configure q --history 7d` keeps records" in nothing.records[0]["now"]


def test_a_message_that_waits_for_its_turn_is_explained_with_the_figures_of_its_queue() -> None:
    stats = SimpleNamespace(paused=False, waiting=1, in_flight=2, consumers=1)
    assert _waiting(cast("QueueStats", stats), " q") == (
        "waiting for its turn: waiting messages in the queue: 1, in flight: 2; the queue has 1 consumer"
    )
