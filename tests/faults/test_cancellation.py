"""Cancellation at every suspension: no lock is left, no write is partial, and the reported outcome is true."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from tests.faults.scenarios import SCENARIOS, Scenario
from tests.faults.stepping import How, Moment, Suspensions, run_cancelled

if TYPE_CHECKING:
    from tests.faults.account import Account

#: The source of the cancellation, and whether the suspensions of all tasks count or only those of the cancelled task.
#: asyncio's timeout and task group cancel in the same way, a turn of the loop later, so `make test` runs the timeout.
WAYS = [
    pytest.param(How.NATIVELY, True, id="natively, whoever suspends"),
    pytest.param(How.BY_GROUP, False, id=How.BY_GROUP.value, marks=pytest.mark.slow),
    *(pytest.param(how, False, id=how.value) for how in How if how not in {How.NATIVELY, How.BY_GROUP}),
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
@pytest.mark.parametrize("moment", Moment, ids=lambda moment: moment.value)
@pytest.mark.parametrize(("how", "everywhere"), WAYS)
@pytest.mark.filterwarnings("ignore::aiozkqueue.errors.UncommittedWarning")
async def test_a_cancellation_at_any_suspension_leaves_no_lock_and_no_partial_write(
    quick: str, root: str, account: Account, scenario: type[Scenario], moment: Moment, how: How, *, everywhere: bool
) -> None:
    suspensions = Suspensions()
    suspensions.install()
    async with zq.connect(quick, root=root, session_timeout=20) as session:
        for chosen in count(1):
            case = scenario(session, account, chosen)
            await case.prepare()
            reached, returned = await run_cancelled(
                suspensions, chosen, moment, how, case.operate, everywhere=everywhere
            )
            await case.check(returned=returned)
            if not reached:
                assert chosen > 1
                return
