"""Servers whose jute.maxbuffer is smaller than the requests that the client expects them to accept."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.admin import Severity
from aiozkqueue.errors import MessageTooLargeError, NotCommittedError, TransactionTooLargeError
from aiozkqueue.runtime.sizes import message_limit
from aiozkqueue.testing import EmbeddedZooKeeper, ServerOptions
from tests.integration.queue.conftest import eventually
from tests.observer import observer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

LIMIT = 100_000


@pytest.fixture(scope="module")
def small(embedded_server: Callable[..., EmbeddedZooKeeper]) -> str:
    """A server with a small jute.maxbuffer."""
    return embedded_server(ServerOptions(jute_maxbuffer=LIMIT)).hosts


@pytest.fixture
async def session(small: str, queue_root: str) -> AsyncIterator[zq.QueueSession]:
    """A session on the small server."""
    async with zq.connect(small, root=queue_root) as session, asyncio.timeout(40):
        yield session


async def _drained(session: zq.QueueSession, queue: zq.Queue[bytes]) -> list[bytes]:
    """Take and consume all messages."""
    values: list[bytes] = []
    async with asyncio.timeout(30):
        while True:
            async with session.transaction() as transaction:
                if not (messages := await transaction.take_many(queue, limit=100, timeout=0)):
                    return values
                values += [message.value for message in messages]


@pytest.mark.parametrize("call", ["put", "put_many"])
async def test_a_message_that_the_server_refuses_by_its_size_fails_and_names_the_setting(
    small: str, queue_root: str, session: zq.QueueSession, call: str
) -> None:
    queue = session.queue("jobs")
    await queue.put(b"before")
    with pytest.raises(MessageTooLargeError) as refused:
        await (queue.put_many([b"x" * 300_000]) if call == "put_many" else queue.put(b"x" * 300_000))
    text = r"queue 'jobs': the message takes 300000 bytes, ZooKeeper accepts (\d+) .* jute.maxbuffer=1048575"
    sizes = re.search(text, str(refused.value))
    assert sizes is not None, refused.value
    # exactly that of the limit, unless the machine was too slow to determine it
    assert message_limit(LIMIT) <= int(sizes[1]) < 300_000
    assert "in parts" not in str(refused.value)
    # Refused without being sent, since the limit is known now.
    with pytest.raises(MessageTooLargeError, match=r"takes 300000 bytes, .*; set jute\.maxbuffer=1048575 on every"):
        await queue.put(b"x" * 300_000)
    await queue.put(b"after")
    async with observer(small) as view:
        assert len(await view.children(f"{queue_root}/jobs/items")) == 2
    assert sorted(await _drained(session, queue)) == [b"after", b"before"]


async def test_many_messages_that_are_put_together_are_stored_in_smaller_requests(
    small: str, queue_root: str, session: zq.QueueSession
) -> None:
    queue = session.queue("jobs")
    values = [b"%04d" % number + b"x" * 3000 for number in range(400)]
    await asyncio.gather(*map(queue.put, values))
    assert sorted(await _drained(session, queue)) == values
    async with observer(small) as view:
        assert not await view.children(f"{queue_root}/jobs/locks")


@pytest.mark.parametrize("bundle", [1, 64])
async def test_many_messages_are_put_at_once_moved_and_rolled_back_together(
    session: zq.QueueSession, bundle: int
) -> None:
    queue, target = session.queue("jobs"), session.queue("moved")
    for each in (queue, target):
        await each.configure(zq.QueueConfig(bundle=bundle))
    values = [b"%04d" % number + b"x" * 1500 for number in range(400)]
    await queue.put_many(values)
    reference = await session.admin.moves.start(queue, target)

    async def moved() -> bool:
        return (await session.admin.moves.status(reference)).state != "running"

    await eventually(moved)
    status = await session.admin.moves.status(reference)
    assert (status.moved, status.error) == (400, None)
    async with session.transaction(autocommit=False) as transaction:
        assert len(await transaction.take_many(target, limit=400, timeout=30)) == 400
        await transaction.rollback()
    assert await target.size() == 400
    taken: list[bytes] = []
    while len(taken) < 400:
        async with session.transaction() as transaction:
            taken += [message.value for message in await transaction.take_many(target, limit=400, timeout=30)]
    assert sorted(taken) == values


async def test_other_calls_continue_while_large_messages_are_refused(session: zq.QueueSession) -> None:
    queue = session.queue("jobs")
    large = [queue.put(b"x" * size) for size in (110_000, 200_000, 400_000, 900_000)]
    small = [queue.put(b"%d" % number) for number in range(50)]
    outcomes = await asyncio.gather(*large, *small, return_exceptions=True)
    assert all(isinstance(outcome, NotCommittedError | MessageTooLargeError) for outcome in outcomes[: len(large)])
    assert not [outcome for outcome in outcomes[len(large) :] if isinstance(outcome, BaseException)]
    assert len(await _drained(session, queue)) == 50


async def test_a_transaction_that_is_refused_by_its_size_returns_its_messages(session: zq.QueueSession) -> None:
    queue, target = session.queue("jobs"), session.queue("done")
    await queue.put(b"job")
    with pytest.raises(TransactionTooLargeError):
        async with session.transaction() as transaction:
            await transaction.take(queue)
            for _ in range(10):
                transaction.put(target, b"x" * 50_000)
    async with session.transaction() as transaction:
        message = await transaction.take(queue, timeout=30)
        assert message is not None
        assert message.value == b"job"
    assert not await _drained(session, target)


async def test_the_diagnosis_reports_a_server_with_a_small_limit(session: zq.QueueSession) -> None:
    diagnosis = await session.admin.diagnose()
    (finding,) = (found for found in diagnosis.findings if "jute.maxbuffer" in found.advice)
    assert finding.severity is Severity.ERROR
    (server,) = diagnosis.ensemble.servers
    assert server.request_limit is not None
    assert LIMIT <= server.request_limit < 1_048_575


async def test_a_server_that_is_restarted_with_a_larger_limit_gets_large_messages(
    queue_root: str, tmp_path: Path
) -> None:
    async with (
        EmbeddedZooKeeper(ServerOptions(jute_maxbuffer=LIMIT), data_dir=tmp_path) as small,
        zq.connect(small.hosts, root=queue_root, session_timeout=20) as session,
        asyncio.timeout(50),
    ):
        queue = session.queue("jobs")
        with pytest.raises(MessageTooLargeError):
            await queue.put(b"x" * 300_000)
        port = small.node.ports.client
        await asyncio.to_thread(small.stop)
        async with EmbeddedZooKeeper(data_dir=tmp_path, port=port):
            await queue.put(b"small")  # waits for the connection
            await queue.put(b"x" * 300_000)
            assert await queue.size() == 2
