"""Messages that are put together into a queue with a path so long that fewer of them fit into a request."""

from __future__ import annotations

import pytest

import aiozkqueue as zq
from aiozkqueue.testing import run_virtual, simulated


@pytest.mark.parametrize("bundle", [1, 64])
@pytest.mark.parametrize("length", [250, 1500])
def test_many_small_messages_are_put_in_as_many_requests_as_their_paths_need(length: int, bundle: int) -> None:
    values = [b"%04d" % number + b"x" * 150 for number in range(2500)]

    async def main() -> list[bytes]:
        async with simulated() as cluster, cluster.connect(root="/" + "r" * length) as session:
            jobs = session.queue("q" * 250)
            await jobs.configure(zq.QueueConfig(bundle=bundle))
            ids = await jobs.put_many(values)
            stored = await jobs.peek(limit=len(values))
            assert [message.id for message in stored] == ids
            return [message.body for message in stored]

    assert run_virtual(main) == values
