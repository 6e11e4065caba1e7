"""An operation at another program's queue that a server always refuses is not repeated at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.dialects.framing import frame
from aiozkqueue.session.internals import core_of
from aiozkqueue.zookeeper import Create, QuotaExceededError
from aiozkqueue.zookeeper.wire import error_of
from tests.simulation.test_known_configuration import play
from tests.simulation.test_lasting_refusals import UNKNOWN, refuse

if TYPE_CHECKING:
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
            with pytest.raises(error, match="names in /app/jobs are taken|quota"):
                await tx.commit(timeout=20)
        assert len(refused) == 1

    play(program, 2)
