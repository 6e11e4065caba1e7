"""An embedded ensemble elects, loses and takes back its nodes as three machines would."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.integration.testing.raw import session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiozkqueue.testing import EmbeddedEnsemble


@pytest.fixture
def ensemble(zookeeper_ensemble: EmbeddedEnsemble) -> Iterator[EmbeddedEnsemble]:
    """The shared ensemble; whole again afterwards."""
    yield zookeeper_ensemble
    for node in zookeeper_ensemble.nodes:
        if node.running:
            node.resume()
        else:
            node.launch()
    for node in zookeeper_ensemble.nodes:
        node.wait_serving()


def test_one_node_leads_and_two_follow(ensemble: EmbeddedEnsemble) -> None:
    modes = [node.mode() for node in ensemble.nodes]
    assert sorted(mode or "" for mode in modes) == ["follower", "follower", "leader"]
    assert ensemble.leader().mode() == "leader"
    assert len(ensemble.followers()) == 2
    assert ensemble.hosts == ",".join(node.hosts for node in ensemble.nodes)


async def test_a_killed_leader_is_replaced_and_comes_back_as_a_follower_with_the_data(
    ensemble: EmbeddedEnsemble, queue_root: str
) -> None:
    old = await asyncio.to_thread(ensemble.leader)
    await asyncio.to_thread(old.kill)
    new = await asyncio.to_thread(ensemble.leader)
    assert new is not old
    async with session(new.hosts) as client:
        assert await client.create(queue_root) == 0
    await asyncio.to_thread(old.start)
    assert await asyncio.to_thread(old.mode) == "follower"
    async with session(old.hosts) as client:
        assert await client.exists(queue_root)


async def test_a_paused_leader_is_replaced_and_follows_when_resumed(ensemble: EmbeddedEnsemble) -> None:
    old = await asyncio.to_thread(ensemble.leader)
    old.pause()
    async with asyncio.timeout(30):  # it may still have answered while the signal was on its way
        while (new := await asyncio.to_thread(ensemble.leader)) is old:  # noqa: ASYNC110 -- another process's
            await asyncio.sleep(0.05)
    old.resume()
    await asyncio.to_thread(old.wait_serving)
    async with asyncio.timeout(30):
        while await asyncio.to_thread(old.mode) != "follower":  # noqa: ASYNC110 -- another process's
            await asyncio.sleep(0.05)
    assert await asyncio.to_thread(ensemble.leader) is new


async def test_without_a_majority_nobody_leads(ensemble: EmbeddedEnsemble) -> None:
    for node in await asyncio.to_thread(ensemble.followers):
        await asyncio.to_thread(node.kill)
    async with asyncio.timeout(30):
        while any([await asyncio.to_thread(node.mode) for node in ensemble.nodes]):  # noqa: ASYNC110 -- as above
            await asyncio.sleep(0.05)
