"""Many large dead letters are read and redriven a few at a time."""

from __future__ import annotations

from typing import Any

from aiozkqueue.queue.commit.unclaimed import PAGE_BYTES
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import run_virtual, simulated

LETTERS, SIZE = 24, 900_000


def test_large_dead_letters_are_read_a_few_megabytes_at_a_time() -> None:
    async def main() -> tuple[list[int], int]:
        async with simulated() as cluster, cluster.connect() as session:
            jobs = session.queue("jobs")
            for _ in range(LETTERS):
                await jobs.put(b"x" * SIZE)
                async with session.transaction() as tx:
                    message = await tx.take(jobs, timeout=5)
                    assert message is not None
                    tx.reject(message, "broken")
            zookeeper: Any = core_of(session).zookeeper  # Any: its methods are replaced
            read_many, sizes = zookeeper.read_many, list[int]()

            async def measured(*args: Any, **options: Any) -> Any:
                nodes = await read_many(*args, **options)
                sizes.append(sum(len(node.data) for node in nodes if node is not None))
                return nodes

            zookeeper.read_many = measured
            assert len(await jobs.dead_letters.peek(LETTERS)) == LETTERS
            assert await jobs.dead_letters.redrive() == LETTERS
            return sizes, await jobs.size()

    sizes, restored = run_virtual(main)
    assert restored == LETTERS
    assert sum(sizes) >= 2 * LETTERS * SIZE
    assert max(sizes) <= PAGE_BYTES
