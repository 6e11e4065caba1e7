"""Changes of a queue's configuration by several tasks of a session do not undo each other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.session.internals import state_of
from aiozkqueue.testing import run_virtual
from aiozkqueue.testing.simulator.cluster import make_cluster
from tests.simulation.between import Between

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.layout import StoredConfig

    Change = Callable[[zq.Queue[bytes]], Awaitable[object]]

#: Changes, each with a function that finds it in a configuration.
CHANGES: dict[str, tuple[Change, Callable[[StoredConfig], bool]]] = {
    "delay": (lambda jobs: jobs.put(b"later", delay=30), lambda config: bool(config.scheduled)),
    "priority": (lambda jobs: jobs.put(b"urgent", priority=-3), lambda config: -3 in config.priorities),
    "generation": (
        lambda jobs: state_of(jobs).next_generation("/zms/jobs/items/item-x-0000000000"),
        lambda config: bool(config.generations),
    ),
    "unbundle": (lambda jobs: jobs.admin.unbundle(), lambda config: not config.bundled),
    "size": (lambda jobs: jobs.configure(zq.QueueConfig(max_size=100)), lambda config: config.max_size == 100),
}


@pytest.mark.parametrize("number", range(1, 13))
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_configuration_keeps_a_change_made_meanwhile(change: str, number: int) -> None:
    make, made = CHANGES[change]

    async def program() -> None:
        async with make_cluster(seed=0).connect() as session:
            jobs = session.queue("jobs")
            await jobs.put_many([b"1", b"2", b"3"])

            other: list[asyncio.Task[None]] = []
            ended = False

            async def meanwhile() -> None:
                if not ended:
                    other.append(asyncio.create_task(jobs.configure(zq.QueueConfig(clean_every=77))))
                    await asyncio.wait(other, timeout=1)  # it may have to wait for the interrupted change

            Between(session, number, meanwhile)
            await make(jobs)
            ended = True
            await asyncio.gather(*other)
            await jobs.configuration()  # reads the configuration
            config = state_of(jobs).config
            assert made(config)
            assert config.clean_every == 77 or not other

    run_virtual(program)
