"""The names of a sharder's queues."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from aiozkqueue.dialects.sharding import another_shard, first_shard, is_shard


@given(st.text(min_size=1, max_size=20), st.integers(0, 12))
def test_sharders_that_see_the_same_shards_add_the_same_new_one(path: str, count: int) -> None:
    shards: list[str] = []
    for _ in range(count):
        shards.append(another_shard(path, shards))
    assert len(set(shards)) == count
    assert shards == [another_shard(path, shards[:number]) for number in range(count)]
    for name in shards:
        assert is_shard(name)
        assert str(UUID(name.removeprefix("queue-"))) == name.removeprefix("queue-")
    assert not count or shards[0] == first_shard(path)


def test_a_removed_shard_is_added_again_whatever_shards_a_leader_added() -> None:
    first = first_shard("/path")
    second = another_shard("/path", [first])
    assert another_shard("/path", [second, "queue-0e1d6f8e-6b0c-4b6e-8a52-6c0a9f6a2a11"]) == first
    assert not is_shard("something-else")
