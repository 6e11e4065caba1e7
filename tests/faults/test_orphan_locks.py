"""Locks of claims that could not read their items are removed at once, and the caller gets the error."""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.testing import Opcode, ZooKeeperProxy
from aiozkqueue.testing.proxy import Connection, Direction, FaultProxy, Flow
from tests.faults.account import CLAIM, SETTLE
from tests.integration.queue.test_obstacles import set_acl

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiozkqueue.testing.frames import Request
    from tests.faults.account import Account

SYSTEM_ERROR = -1


class _Spoiled(FaultProxy):
    """Replaces the replies to some requests."""

    def __init__(self, server: str) -> None:
        super().__init__(server)
        self.xids: set[int] = set()
        self.replacement: tuple[int, bytes] = (SYSTEM_ERROR, b"")

    async def _forward(self, connection: Connection, flow: Flow, read_at: float, data: bytes) -> None:
        if flow.direction is Direction.TO_CLIENT and len(data) >= 20:  # at least a reply header
            _, xid, zxid, _ = struct.unpack_from(">iiqi", data)
            if xid in self.xids:
                self.xids.remove(xid)
                error, body = self.replacement
                data = struct.pack(">iiqi", 16 + len(body), xid, zxid, error) + body
        await super()._forward(connection, flow, read_at, data)


class SpoilingProxy(ZooKeeperProxy, _Spoiled):
    """Replaces the reply to one of the reads that follow a claim."""

    def spoil(self, nth: int, error: int, body: bytes = b"") -> None:
        """Answer the nth read after the next claim with this error and body."""
        self.replacement = (error, body)
        left = [0]

        def match(request: Request) -> bool:
            if not left[0] and nth and CLAIM(request):
                left[0] = nth
            elif left[0] > 0 and request.opcode == Opcode.MULTI_READ:
                left[0] -= 1
                if not left[0]:
                    self.xids.add(request.xid)
                    left[0] = -1
            return False  # hold no request

        self.hold_request(match)


@pytest.fixture
async def spoiling(quick: str) -> AsyncIterator[SpoilingProxy]:
    async with SpoilingProxy(quick) as between:
        yield between


@pytest.fixture
async def session(spoiling: SpoilingProxy, root: str) -> AsyncIterator[zq.QueueSession]:
    async with zq.connect(spoiling.hosts, root=root, session_timeout=20) as opened, asyncio.timeout(60):
        yield opened


@pytest.fixture
async def other(quick: str, root: str) -> AsyncIterator[zq.QueueSession]:
    async with zq.connect(quick, root=root, session_timeout=20) as opened:
        yield opened


async def committed(session: zq.QueueSession, count: int) -> list[bytes]:
    """Take this many messages, each in its own transaction."""
    bodies: list[bytes] = []
    for _ in range(count):
        async with session.transaction() as tx:
            message = await tx.take(session.queue("jobs"), timeout=None)
            assert message is not None
            bodies.append(message.body)
    return bodies


@pytest.mark.parametrize(("error", "body"), [(SYSTEM_ERROR, b""), (0, b"\x00\x00")], ids=["server error", "garbage"])
@pytest.mark.parametrize("kind", ["plain", "touched", "counted", "grouped", "ordered"])
async def test_a_read_that_fails_after_a_claim_leaves_no_lock_and_other_sessions_get_the_messages(
    session: zq.QueueSession,
    other: zq.QueueSession,
    spoiling: SpoilingProxy,
    account: Account,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    error: int,
    body: bytes,
) -> None:
    jobs = other.queue("jobs", policy=zq.ConsumeTimes(9) if kind == "counted" else zq.AtLeastOnce())
    if kind == "ordered":
        await jobs.configure(zq.QueueConfig(ordered=True))
    for name in ("a", "b", "c"):
        await jobs.put(name.encode(), group=name if kind == "grouped" else None)
    if kind == "touched":  # their version shows that they have been held before
        items = account.path("jobs", "items")
        for name in await account.view.children(items):
            await account.view.set(f"{items}/{name}", await account.view.get(f"{items}/{name}"))
    spoiling.spoil(2 if kind == "touched" else 1, error, body)
    with pytest.raises(zq.QueueError):
        async with session.transaction() as tx:
            await tx.take_many(session.queue("jobs"), 3, timeout=30)
    async with asyncio.timeout(30):
        assert sorted(await committed(other, 3)) == [b"a", b"b", b"c"]
    await account.unlocked("jobs")
    assert any("could not be read" in record.getMessage() for record in caplog.records)


async def test_a_redelivered_message_is_taken_at_once_despite_the_lock_of_a_failed_claim(
    session: zq.QueueSession, other: zq.QueueSession, spoiling: SpoilingProxy, account: Account
) -> None:
    """It is removed when the claim locks it, and redriven before the lock is removed; then the queue has no traffic."""
    jobs = other.queue("jobs")
    await jobs.put(b"a")
    claim = spoiling.hold_request(CLAIM)
    async with session.transaction(autocommit=False) as tx:
        taking = asyncio.ensure_future(tx.take(session.queue("jobs"), timeout=None))
        await claim.struck()
        async with other.transaction() as theirs:
            message = await theirs.take(jobs, timeout=30)
            assert message is not None
            theirs.reject(message, "later")
        removal = spoiling.hold_request(SETTLE)
        claim.release()
        await removal.struck()
        taking.cancel()
        with suppress(asyncio.CancelledError):
            await taking
        waiting = asyncio.ensure_future(committed(other, 1))
        await asyncio.sleep(0.5)  # the other session is idle and has its watches set
        assert await jobs.dead_letters.redrive() == 1
        await asyncio.sleep(0.5)  # it has found the lock
        assert not waiting.done()
        removal.release()
        async with asyncio.timeout(20):
            assert await waiting == [b"a"]
    await account.unlocked("jobs")


async def test_a_claim_whose_reply_was_lost_leaves_no_lock_on_an_unreadable_message(
    session: zq.QueueSession, other: zq.QueueSession, spoiling: SpoilingProxy, account: Account
) -> None:
    """The claim is sent again and refused, since its own locks exist."""
    jobs = other.queue("jobs")
    await jobs.put(b"sealed")
    [name] = await account.view.children(account.path("jobs", "items"))
    await set_acl(account.view, account.path("jobs", "items", name), readable=False)
    await jobs.put(b"open")
    spoiling.lose_after(CLAIM)
    async with session.transaction() as tx:
        messages = await tx.take_many(session.queue("jobs"), 2, timeout=30)
        assert [message.body for message in messages] == [b"open"]
    await account.unlocked("jobs")
