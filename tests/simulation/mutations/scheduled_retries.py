"""Defects in scheduled retries."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from aiozkqueue.queue.commit.create_items import CreateItems
from aiozkqueue.queue.commit.write import AtomicWrite
from aiozkqueue.session import delivery
from tests.simulation.mutations import mutation
from tests.simulation.workload import run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pytest

of_retries = partial(run, feature="scheduled retries")


@mutation(of_retries)
def retry_schedule_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(delivery, "retry_delay", lambda *_: 0.0)


@mutation(of_retries)
def exhausted_handler_committed_before_the_dead_letter(patch: pytest.MonkeyPatch) -> None:
    give_up = delivery.WorkSettling.give_up

    async def in_two_steps(
        self: delivery.WorkSettling, reason: str, exhausted: Callable[[], Awaitable[None]], cause: BaseException
    ) -> None:
        await exhausted()
        runtime, puts = self.work.runtime, list(self.work._puts)
        for put in puts:
            await put.state.open_or_create()
        await runtime.settle(AtomicWrite(runtime.ids.next(), CreateItems(puts)))
        await asyncio.sleep(0.3)
        await give_up(self, reason, _nothing, cause)

    patch.setattr(delivery.WorkSettling, "give_up", in_two_steps)


async def _nothing() -> None:
    pass
