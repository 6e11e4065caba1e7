"""An operation at another program's queue that a server always refuses is not repeated at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.dialects.framing import frame
from aiozkqueue.session.internals import core_of
from aiozkqueue.zookeeper import Create, QuotaExceededError, SetData
from aiozkqueue.zookeeper.wire import error_of
from tests.simulation.test_known_configuration import play
from tests.simulation.test_lasting_refusals import UNKNOWN, refuse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.zookeeper import ZooKeeperError

PATH, LOCKS = "/app/jobs", "/app/locks"


def queue_of(session: zq.QueueSession) -> zq.CuratorQueue[bytes]:
    return session.curator_queue(PATH, lock_path=LOCKS)


@pytest.mark.parametrize("number", [1, 64, 200])
@pytest.mark.parametrize(
    ("refusal", "error"),
    [(QuotaExceededError(), zq.AccessDeniedError), (error_of(UNKNOWN), zq.NotCommittedError)],
    ids=["quota", "unknown code"],
)
def test_a_put_fails_at_once_if_the_taken_names_cannot_be_skipped(
    refusal: ZooKeeperError, error: type[zq.QueueError], number: int
) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, session = sessions
        zookeeper = core_of(operator).zookeeper
        await zookeeper.ensure(PATH)
        for taken in range(number, 2 * number):
            await zookeeper.multi([Create(f"{PATH}/queue-{taken:010d}", frame([b"copied"]))])
        refused = refuse(session, lambda each: "/wake-passing-" in each.path, refusal)
        async with session.transaction(autocommit=False) as tx:
            tx.put(queue_of(session), b"1")
            with pytest.raises(error, match=r"names in /app/jobs are taken|quota"):
                await tx.commit(timeout=20)
        assert len(refused) == 1

    play(program, 2)


def test_the_locks_of_items_that_could_not_be_read_are_removed_with_a_wake_up_that_leaves_the_peers_data() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, session = sessions
        peer, theirs = core_of(operator).zookeeper, queue_of(operator)
        await theirs.put_many([b"1", b"2"])
        await peer.multi([SetData(PATH, b"of the peer")])
        zookeeper: Any = core_of(session).zookeeper  # its methods are replaced
        read = zookeeper.read_versioned

        async def refusing(paths: Sequence[str], **options: Any) -> Any:  # passes all options on
            if any(path.startswith(f"{PATH}/") for path in paths):
                raise error_of(UNKNOWN)
            return await read(paths, **options)

        zookeeper.read_versioned = refusing
        before = (await peer.read(PATH)).stat.children_created
        with pytest.raises(zq.ConnectionLostError):
            async with session.transaction() as tx:
                await tx.take(queue_of(session), timeout=5)
        await asyncio.sleep(1)
        data, stat = await peer.read(PATH)
        assert await peer.children(LOCKS) == []
        assert data == b"of the peer"
        assert stat.children_created == before + 1  # Curator's consumers watch the children

    play(program, 2)


def test_a_retry_whose_attempt_cannot_be_recorded_is_logged_and_comes_within_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, session = sessions
        await queue_of(operator).put(b"1")
        refused = refuse(session, lambda each: isinstance(each, SetData) and each.path.startswith(f"{PATH}/"))
        async with session.transaction(autocommit=False) as tx:
            assert await tx.take(queue_of(session), timeout=5) is not None
            await tx.rollback(delay=300)
        (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert "message queue-0000000000 is kept for 60 s without a record" in warning
        assert str(UNKNOWN) in warning
        assert len(refused) == 1
        async with operator.transaction() as tx:
            assert await tx.take(queue_of(operator), timeout=61) is not None

    play(program, 2)
