"""A queue that is deleted while all queues are read is left out: it is no mistake of the operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aiozkqueue.cli.asked import AskedQueue
from aiozkqueue.cli.queues import _read_figures
from aiozkqueue.cli.top import _read_stats
from aiozkqueue.operations.budget import Budget
from tests.simulation.between import Between
from tests.simulation.test_known_configuration import play

if TYPE_CHECKING:
    import aiozkqueue as zq
    from aiozkqueue.admin import QueueStats

pytestmark = pytest.mark.timeout(120)

#: More requests than an examination takes.
REQUESTS = 1000


def test_the_doctor_does_not_report_a_queue_that_is_deleted_meanwhile_as_missing() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        reader, operator = sessions
        number = 0
        for number in range(1, REQUESTS, 3):
            for name in ("deleted", "kept"):
                await operator.queue(name).put(b"x")
            between = Between(reader, number, lambda: operator.queue("deleted").admin.delete(force=True))
            diagnosis = await reader.admin.diagnose()
            if not between.reached:
                break
            missing = [finding.subject for finding in diagnosis.findings if "there is no such queue" in finding.text]
            assert missing == [], number
            assert "kept" in [queue.name for queue in diagnosis.queues]
        else:
            pytest.fail("an examination takes more requests")
        assert number > 10
        await operator.queue("deleted").admin.delete(force=True)
        named = await operator.admin.diagnose("deleted")
        assert [finding.text for finding in named.findings if finding.subject == "deleted"] == [
            "there is no such queue"
        ]

    play(program, 2)


def test_the_view_of_all_queues_shows_no_queue_that_is_deleted_meanwhile() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        reader, operator = sessions
        number, complete = 0, False
        while not complete:
            number += 1
            for name in ("deleted", "kept"):
                await operator.queue(name).put(b"x")
            gone: list[bool] = []

            async def delete(gone: list[bool] = gone) -> None:
                await operator.queue("deleted").admin.delete(force=True)
                gone.append(True)

            between = Between(reader, number, delete)
            found = await _read_stats(reader, None)
            complete = not between.reached
            assert "kept" in found
            assert not gone or not is_empty(found.get("deleted")), number
        assert number > 5

    play(program, 2)


def is_empty(figures: QueueStats | str | None) -> bool:
    return figures is not None and not isinstance(figures, str) and not figures.size


def test_figures_of_all_queues_do_not_report_a_queue_that_is_deleted_meanwhile_as_missing() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        [session] = sessions
        await session.queue("kept").put(b"x")
        asked = [(AskedQueue(name), session.queue(name)) for name in ("deleted", "kept")]
        for named, absent in ((False, []), (True, ["deleted"])):
            seen = await _read_figures(asked, Budget(10), named=named)
            assert [figures.queue for figures in seen.found] == ["kept"]
            assert [queue.name for queue in seen.absent] == absent

    play(program, 1)
