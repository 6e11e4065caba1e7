"""Three servers: the client and its session move between them."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.zookeeper import Create, SessionExpiredError, ZooKeeperClient

if TYPE_CHECKING:
    from aiozkqueue.testing import EmbeddedEnsemble, EmbeddedNode
    from tests.integration.zookeeper.conftest import Opener


def _node_of(zk: ZooKeeperClient, ensemble: EmbeddedEnsemble) -> EmbeddedNode:
    connection = zk._session.connection
    assert connection is not None
    return next(node for node in ensemble.nodes if node.hosts == connection.peer)


async def _followers(ensemble: EmbeddedEnsemble) -> list[EmbeddedNode]:
    """Return all nodes except the leader, whether or not they answer now."""
    leader = await asyncio.to_thread(ensemble.leader)
    return [node for node in ensemble.nodes if node is not leader]


async def test_clients_are_spread_over_the_servers(zookeeper_ensemble: EmbeddedEnsemble, opened: Opener) -> None:
    clients = [await opened(zookeeper_ensemble.hosts) for _ in range(20)]
    assert len({_node_of(zk, zookeeper_ensemble).number for zk in clients}) > 1


async def test_a_session_survives_the_death_of_its_follower(
    zookeeper_ensemble: EmbeddedEnsemble, queue_root: str, opened: Opener
) -> None:
    follower = (await _followers(zookeeper_ensemble))[0]
    others = [node.hosts for node in zookeeper_ensemble.nodes if node is not follower]
    zk = await opened(follower.hosts + queue_root, session_timeout=60)
    await zk.multi([Create("/e", ephemeral=True)])
    # The client gets the other servers only now, so it is connected to the follower.
    servers = (await opened(",".join([follower.hosts, *others])))._session.ensemble.servers
    zk._session.ensemble = zk._session.ensemble._replace(servers=servers)
    await asyncio.to_thread(follower.kill)
    try:
        began = time.monotonic()
        node = await zk.read("/e", generation=1)
        assert time.monotonic() - began < 30  # long before the timeout of a silent connection
        assert node.stat.ephemeral_owner == zk.session_id
    finally:
        await asyncio.to_thread(follower.start)


async def test_a_client_leaves_a_paused_server_within_the_session_timeout(
    zookeeper_ensemble: EmbeddedEnsemble, queue_root: str, opened: Opener
) -> None:
    for _ in range(3):  # repeated, since a stall of the machine may end the session
        zk = await opened(zookeeper_ensemble.hosts + queue_root, session_timeout=9.0)
        with suppress(SessionExpiredError):
            await _leaves_a_paused_server(zk, zookeeper_ensemble)
            return
        await zk.close()
    pytest.fail("the session ended each time")


async def _leaves_a_paused_server(zk: ZooKeeperClient, zookeeper_ensemble: EmbeddedEnsemble) -> None:
    await zk.multi([Create("/e", ephemeral=True)])
    followers = await _followers(zookeeper_ensemble)
    if _node_of(zk, zookeeper_ensemble) not in followers:
        zk._session.ensemble = zk._session.ensemble._replace(
            servers=tuple(s for s in zk._session.ensemble.servers if str(s) in {f.hosts for f in followers})
        )
        connection = zk._session.connection
        assert connection is not None
        connection.abort("to a follower")
        await zk.exists("/")
    paused = _node_of(zk, zookeeper_ensemble)
    await asyncio.to_thread(paused.pause)
    try:
        node = await asyncio.wait_for(zk.read("/e", generation=1), 30)  # raises if the session has ended
        assert node.stat.ephemeral_owner == zk.session_id
        assert _node_of(zk, zookeeper_ensemble) is not paused
    finally:
        paused.resume()
        await asyncio.to_thread(paused.wait_serving)
