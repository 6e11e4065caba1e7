"""How the fate of one change is waited for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from aiozkqueue.errors import NotCommittedError
from aiozkqueue.queue.commit.register import RegisterSettlement

if TYPE_CHECKING:
    from aiozkqueue.queue.commit.group_commit import Committer
    from aiozkqueue.queue.commit.write import Settlement


class Ledger:
    """What a settlement asks of a committer."""

    grace = 30.0

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.settled = 0

    def count_settled(self) -> None:
        self.settled += 1


def submitted(ledger: Ledger) -> Settlement:
    settlement = RegisterSettlement("t", (), lambda _, error: NotCommittedError(str(error)))
    settlement.committer = cast("Committer", ledger)
    return settlement


async def test_several_may_wait_for_one_and_each_may_be_cancelled() -> None:
    ledger = Ledger()
    settlement = submitted(ledger)
    waiting = [asyncio.create_task(settlement.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    waiting[1].cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)  # a caller that is cancelled sees it out
    settlement.succeed(None)
    assert await asyncio.gather(waiting[2]) == [None]
    assert all(
        isinstance(one, asyncio.CancelledError) for one in await asyncio.gather(*waiting[:2], return_exceptions=True)
    )
    assert ledger.settled == 1


async def test_who_owes_it_is_told_before_all_others_and_only_once() -> None:
    told: list[str] = []

    class Owing:
        def commit_settled(self, settlement: Settlement) -> None:
            assert settlement.settled
            told.append("debtor")

    settlement = submitted(Ledger())
    settlement.watch(lambda _: told.append("watcher"))
    settlement.debtor = Owing()
    waiting = asyncio.create_task(settlement.wait())
    await asyncio.sleep(0)
    settlement.fail(NotCommittedError("no"))
    settlement.succeed(None)
    await waiting
    assert told == ["debtor", "watcher"]
    assert settlement.debtor is None
