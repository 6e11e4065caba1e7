"""A change of a Spark batch that the servers refuse again and again ends with an error, or is tried more rarely."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.batches.ledger import Ledger
from aiozkqueue.batches.staging import BatchWriter
from aiozkqueue.session.internals import core_of
from aiozkqueue.zookeeper import (
    BadVersionError,
    Create,
    Delete,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SetData,
)
from tests.simulation.test_known_configuration import play
from tests.simulation.test_lasting_refusals import refuse

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozkqueue.zookeeper import Operation, ZooKeeperError

GROUP = "spark"
pytestmark = pytest.mark.timeout(60)


def ledger_of(session: zq.QueueSession) -> Ledger:
    return Ledger(core_of(session).handle("jobs"), GROUP)


def creates_lock(operation: Operation) -> bool:
    return isinstance(operation, Create) and "/locks/" in operation.path


def creates_manifest(operation: Operation) -> bool:
    return isinstance(operation, Create) and operation.path.endswith("/batch-")


def writes_record(operation: Operation) -> bool:
    return isinstance(operation, Create | SetData) and operation.path.endswith(f"/ledger/{GROUP}")


def deletes_item(operation: Operation) -> bool:
    return isinstance(operation, Delete) and "/items/" in operation.path


def deletes_lock(operation: Operation) -> bool:
    return isinstance(operation, Delete) and "/locks/" in operation.path


def deletes_page(operation: Operation) -> bool:
    return isinstance(operation, Delete) and operation.path.endswith("/000000")


MAKING = [
    pytest.param(creates_lock, None, "nothing was applied", id="a lock, for an unknown reason"),
    pytest.param(creates_manifest, NoAuthError(), "use the credentials", id="a manifest, by an ACL"),
    pytest.param(writes_record, BadVersionError(), "compare this znode on all servers", id="the record"),
]


@pytest.mark.parametrize(("where", "error", "reason"), MAKING)
def test_a_refused_batch_is_not_made_again_and_again(
    where: Callable[[Operation], bool], error: ZooKeeperError | None, reason: str
) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        (session,) = sessions
        await session.queue("jobs").put_many([b"1", b"2"])
        zookeeper = core_of(session).zookeeper
        multi = zookeeper.multi
        refused = refuse(session, where, error)
        async with asyncio.timeout(60):
            with pytest.raises(zq.NotCommittedError, match=reason):
                await ledger_of(session).next_batch(-1, None)
        assert 0 < len(refused) < 30
        zookeeper.multi = multi  # type: ignore[method-assign]  # it was replaced
        assert await ledger_of(session).next_batch(-1, None) == 0

    play(program, 1)


def test_messages_whose_locks_seem_to_exist_are_tried_ever_more_rarely(caplog: pytest.LogCaptureFixture) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        (session,) = sessions
        await session.queue("jobs").put_many([b"1", b"2"])
        zookeeper = core_of(session).zookeeper
        multi = zookeeper.multi
        refused = refuse(session, creates_lock, NodeExistsError())
        made = asyncio.create_task(ledger_of(session).next_batch(-1, None))
        await asyncio.sleep(60)
        assert 0 < len(refused) < 60
        assert caplog.text.count("stream 'spark' cannot lock messages that seem free") == 1
        zookeeper.multi = multi  # type: ignore[method-assign]  # it was replaced
        async with asyncio.timeout(20):
            assert await made == 0

    play(program, 1)


@pytest.mark.parametrize("bundle", [1, 64])
@pytest.mark.parametrize(
    ("where", "error"),
    [
        (deletes_item, BadVersionError()),
        (deletes_item, NoNodeError()),
        (deletes_lock, BadVersionError()),
        (deletes_page, NotEmptyError()),
    ],
)
def test_a_refused_removal_of_a_batch_ends(
    where: Callable[[Operation], bool], error: ZooKeeperError, bundle: int
) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        (session,) = sessions
        await session.queue("jobs").configure(zq.QueueConfig(bundle=bundle))
        await session.queue("jobs").put_many([b"1", b"2"])
        zookeeper = core_of(session).zookeeper
        multi = zookeeper.multi
        ledger = ledger_of(session)
        assert await ledger.next_batch(-1, None) == 0
        refused = refuse(session, where, error)
        async with asyncio.timeout(60):
            with pytest.raises(zq.NotCommittedError, match="compare this znode on all servers"):
                await ledger.acknowledge(0)
        assert 0 < len(refused) < 120
        zookeeper.multi = multi  # type: ignore[method-assign]  # it was replaced
        await ledger.finish()
        assert await session.queue("jobs").size() == 0

    play(program, 1)


def test_a_lock_that_cannot_be_removed_stays_with_its_batch() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        (session,) = sessions
        await session.queue("jobs").configure(zq.QueueConfig(bundle=1))
        await session.queue("jobs").put_many([b"1", b"2"])
        zookeeper = core_of(session).zookeeper
        multi = zookeeper.multi
        ledger = ledger_of(session)
        await ledger.prepare(-1, None)
        refuse(session, deletes_lock)
        with pytest.raises(zq.NotCommittedError):
            await ledger.release_unsealed()
        zookeeper.multi = multi  # type: ignore[method-assign]  # it was replaced
        assert await ledger.release_unsealed() == 2

    play(program, 1)


def test_a_write_whose_record_seems_to_change_each_time_fails() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        (session,) = sessions
        writer = BatchWriter(core_of(session).handle("jobs"), "writer")
        assert await writer.begin(0, "run") is not None
        refused = refuse(session, lambda each: isinstance(each, SetData) and "/sinks/" in each.path, BadVersionError())
        async with asyncio.timeout(60):
            with pytest.raises(zq.NotCommittedError, match="compare this znode on all servers"):
                await writer.complete(0)
        assert len(refused) == 20

    play(program, 1)
