"""Observers, and servers without a quorum that are in read-only mode."""

from __future__ import annotations

import asyncio
import re

import pytest

import aiozkqueue as zq
from aiozkqueue.testing import EmbeddedEnsemble, EmbeddedNode, ServerOptions
from tests.integration.queue.conftest import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def _with_observer(ensemble: EmbeddedEnsemble) -> EmbeddedNode:
    """Start the last server again as an observer."""
    last = ensemble.nodes[-1]
    for node in ensemble.nodes:
        node.stop()
        file = node.folder / "zoo.cfg"
        settings = re.sub(rf"(?m)^(server\.{last.number}=.*)$", r"\1:observer", file.read_text())
        file.write_text(settings + ("peerType=observer\n" if node is last else ""))
        node.launch()
    for node in ensemble.nodes:
        node.wait_serving(60)
    return last


async def test_a_client_uses_an_observer_but_no_server_in_read_only_mode() -> None:
    options = ServerOptions(heap=128, fsync=False, jvm_options=["-Dreadonlymode.enabled=true"])
    async with EmbeddedEnsemble(3, options) as ensemble:
        observer = await asyncio.to_thread(_with_observer, ensemble)
        assert await asyncio.to_thread(observer.mode) == "observer"
        voters = ensemble.nodes[:2]
        async with zq.connect(observer.hosts, session_timeout=20) as session:
            queue = session.queue("q")
            await queue.put(b"1")
            await asyncio.to_thread(voters[0].kill)

            async def read_only() -> bool:
                return await asyncio.to_thread(observer.mode) == "read-only"

            await eventually(read_only, 60)
            with pytest.raises((zq.NotCommittedError, zq.OutcomeUnknownError)):
                await queue.put(b"2", timeout=1)
            with pytest.raises(zq.ConnectionLostError):
                async with zq.connect(observer.hosts, connect_timeout=1):
                    pass
            assert not session.connected
            await asyncio.to_thread(voters[0].start, 60)
            await queue.put(b"3", timeout=90)
            async with session.transaction() as tx:
                message = await tx.take(queue, timeout=60)
                assert message is not None
                assert message.body == b"1"
