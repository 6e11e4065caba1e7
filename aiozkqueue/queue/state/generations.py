"""Generations of a shard: a new one when its lane's counter nears the end, and the removal of empty old ones."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from aiozkqueue.layout import lane_at, lane_of, priority_of

from .config_rules import check_generation, check_span, is_full

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.layout import StoredConfig
    from aiozkqueue.zookeeper import ZooKeeper

    from .stored_queue import StoredQueue

#: Lanes read together.
PAGE: Final = 256


async def open_next_generation(zookeeper: ZooKeeper, state: StoredQueue, path: str) -> None:
    """Open the next generation of the lane of an item's path, unless it is open.

    The same write gives up the older generations of the shard that are empty. A queue with the most lanes gives up the
    empty older generations of all shards. Nothing is put to them any more, because every put checks the version of the
    configuration under which they were found empty, and the new configuration replaces only this version.

    Raises: as `QueueState.open`; QueueFullError: too many lanes have messages.
    """
    lane = lane_at(state.paths.place_of(path))
    priority = priority_of(lane)
    while True:
        await state.open()
        before = state.snapshot
        # Groups keep lanes in shards that get no other new items.
        shards = next((tier.shard_lanes for tier in before.config.tiers if tier.priority == priority), ())
        shard = next((number for number, lanes in enumerate(shards) if lanes[-1] == lane), None)
        if shard is None:
            return
        config = await _without_empty(zookeeper, state, before.config, shards[shard][:-1])
        if is_full(config):
            config = await _without_empty(zookeeper, state, config, config.older_lanes)
        check_generation(state.name, config, lane)
        (generations,) = (tier.shard_lanes[shard] for tier in config.tiers if tier.priority == priority)
        check_span(state.name, lane, generations)
        spans = config.priorities[priority] if priority else config.generations
        oldest, newest = spans.get(shard, (0, 0))
        await zookeeper.ensure(state.paths.at(lane_of(shard, newest + 1, priority)))
        await state.replace_config(before, config.grown(priority, shard, oldest, newest + 1))


async def _without_empty(
    zookeeper: ZooKeeper, state: StoredQueue, config: StoredConfig, lanes: Sequence[str]
) -> StoredConfig:
    """Return the configuration without the given old lanes that are empty."""
    empty: set[str] = set()
    for start in range(0, len(lanes), PAGE):
        page = lanes[start : start + PAGE]
        stats = await asyncio.gather(*(zookeeper.exists(state.paths.at(lane)) for lane in page))
        empty.update(lane for lane, stat in zip(page, stats, strict=True) if stat is None or not stat.num_children)
    return config.without(empty)
