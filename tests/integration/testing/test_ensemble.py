"""An embedded ensemble elects, loses and readmits its nodes as three machines would."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.integration.testing.raw import session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiozkqueue.testing import EmbeddedEnsemble, EmbeddedNode


@pytest.fixture
def ensemble(zookeeper_ensemble: EmbeddedEnsemble) -> Iterator[EmbeddedEnsemble]:
    """The shared ensemble, complete again after each test."""
    yield zookeeper_ensemble
    for node in zookeeper_ensemble.nodes:
        if node.running:
            node.resume()
        else:
            node.launch()
    for node in zookeeper_ensemble.nodes:
        node.wait_serving()


async def modes(ensemble: EmbeddedEnsemble) -> list[str | None]:
    return [await asyncio.to_thread(node.mode) for node in ensemble.nodes]


async def whole(ensemble: EmbeddedEnsemble) -> EmbeddedNode:
    """Wait until one node leads and all others follow; return the leader. Raises: TimeoutError."""
    async with asyncio.timeout(60):
        while sorted(map(str, found := await modes(ensemble))) != ["follower", "follower", "leader"]:  # noqa: ASYNC110 -- no event reports it
            await asyncio.sleep(0.05)
    return ensemble.nodes[found.index("leader")]


async def test_one_node_leads_and_two_follow(ensemble: EmbeddedEnsemble) -> None:
    leader = await whole(ensemble)
    assert await asyncio.to_thread(ensemble.leader) is leader
    assert set(await asyncio.to_thread(ensemble.followers)) == set(ensemble.nodes) - {leader}
    assert ensemble.hosts == ",".join(node.hosts for node in ensemble.nodes)


async def test_a_killed_leader_is_replaced_and_returns_as_a_follower_with_the_data(
    ensemble: EmbeddedEnsemble, queue_root: str
) -> None:
    old = await asyncio.to_thread(ensemble.leader)
    await asyncio.to_thread(old.kill)
    new = await asyncio.to_thread(ensemble.leader)
    assert new is not old
    async with session(new.hosts) as client:
        assert await client.create(queue_root) == 0
    await asyncio.to_thread(old.start)
    await whole(ensemble)
    async with session(old.hosts) as client:
        assert await client.exists(queue_root)


async def test_a_paused_leader_is_replaced_and_follows_when_resumed(ensemble: EmbeddedEnsemble) -> None:
    for _ in range(5):  # repeated, because a stall of the machine causes another election
        old = await asyncio.to_thread(ensemble.leader)
        await asyncio.to_thread(old.pause)
        async with asyncio.timeout(30):
            while (new := await asyncio.to_thread(ensemble.leader)) is old:  # noqa: ASYNC110 -- no event reports it
                await asyncio.sleep(0.05)
        old.resume()
        await asyncio.to_thread(old.wait_serving)
        if await whole(ensemble) is new:
            break
    else:
        pytest.fail("no elected node remained the leader")


async def test_no_node_leads_without_a_majority(ensemble: EmbeddedEnsemble) -> None:
    for node in ensemble.nodes[1:]:
        await asyncio.to_thread(node.kill)
    async with asyncio.timeout(30):
        while any([await asyncio.to_thread(node.mode) for node in ensemble.nodes]):  # noqa: ASYNC110 -- no event reports it
            await asyncio.sleep(0.05)
