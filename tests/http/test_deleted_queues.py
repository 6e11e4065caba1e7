"""A deleted queue, whose znode is kept for a week, is neither on the dashboard nor among the metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.queue.conftest import eventually

if TYPE_CHECKING:
    import aiozkqueue as zq
    from tests.http.conftest import Starter

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("frequent_samples")]


async def test_a_deleted_queue_is_not_in_the_metrics_and_is_shown_again_when_it_is_created_again(
    start: Starter, session: zq.QueueSession
) -> None:
    await session.queue("kept").put(b"1")
    await session.queue("deleted").put(b"2")
    await session.queue("deleted").admin.delete(force=True)
    service = await start()

    async def queues() -> set[str]:
        text = (await service.get("/metrics")).text
        lines = [line for line in text.splitlines() if line.startswith("aiozkqueue_queue_messages{")]
        return {line.partition('queue="')[2].partition('"')[0] for line in lines}

    async def one_is_shown() -> bool:
        return await queues() == {"kept"}

    async def both_are_shown() -> bool:
        return await queues() == {"deleted", "kept"}

    await eventually(one_is_shown)
    await session.queue("deleted").put(b"3")
    await eventually(both_are_shown)
