"""Lanes: the parents over which a queue's items are spread, each with its own sequence counter.

The plain lane is ``items``. A queue with shards has further ones, ``lanes/s<shard>g<generation>``: a shard whose
counter nears its end (ZooKeeper's does not wrap: after 2147483647 every create fails for ever) goes on in its next
generation. Producers put to the newest generation of each shard; consumers visit all there have ever been.

Each priority in use but 0 has lanes of its own beside those, ``lanes/p<priority + 128>s<shard>g<generation>``, as many
shards as the queue has: a `Tier`. What is scheduled lies in ``later/<hour>``, hours since 1970, until it is taken.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

#: Past this sequence number producers open the lane's next generation.
LANE_END: Final = 2**30

#: Shards a queue may have.
MOST_SHARDS: Final = 1024

#: Generations of one shard that may hold items at the same time.
MOST_GENERATIONS: Final = 16

#: Lanes a queue may have in all: its shards and their generations, for each priority. Consumers visit every one.
MOST_LANES: Final = 4096

#: The most urgent priority, and the least.
FIRST_PRIORITY: Final = -128
LAST_PRIORITY: Final = 127
PRIORITY_DIGITS: Final = 3

#: Milliseconds of due times that share a folder of ``later/``.
HOUR: Final = 3_600_000

_LANE: Final = re.compile(r"/(?:p([0-9]{3}))?s[0-9]+g([0-9]+)$")
_URGENT: Final = re.compile(r"item-t[0-9]+-p([0-9]{3})-")
_PLACE: Final = re.compile(r"items|lanes/(?:p[0-9]{3})?s[0-9]{1,4}g[0-9]{1,10}|later/[0-9]{1,8}")


class Tier(NamedTuple):
    """The lanes of one priority, relative to the queue."""

    priority: int
    put_lanes: tuple[str, ...]
    """Where producers put to: the newest generation of each shard."""
    shard_lanes: tuple[tuple[str, ...], ...]
    """What may hold items: of every shard there has ever been, from the oldest generation not yet empty."""

    @property
    def newest_lanes(self) -> tuple[str, ...]:
        """The newest generation of every shard there has ever been."""
        return tuple(generations[-1] for generations in self.shard_lanes)


def lane_of(shard: int, generation: int, priority: int = 0) -> str:
    """The lane of a shard, relative to the queue."""
    if priority:
        return f"lanes/p{priority - FIRST_PRIORITY:03d}s{shard}g{generation}"
    return "items" if shard == generation == 0 else f"lanes/s{shard}g{generation}"


def tier_of(priority: int, shards: int, width: int, generations: Mapping[int, tuple[int, int]]) -> Tier:
    """The lanes of a priority: ``shards`` are put to, ``width`` is how many there have ever been."""
    lanes: list[tuple[str, ...]] = []
    for shard in range(width):
        oldest, newest = generations.get(shard, (0, 0))
        lanes.append(tuple(lane_of(shard, generation, priority) for generation in range(oldest, newest + 1)))
    return Tier(priority, tuple(generation[-1] for generation in lanes[:shards]), tuple(lanes))


def count_lanes(width: int, generations: Iterable[Mapping[int, tuple[int, int]]]) -> int:
    """How many lanes a queue of this width has, given the generations of each of its priorities, 0 included."""
    return sum(
        width + sum(newest - oldest for shard, (oldest, newest) in spans.items() if shard < width)
        for spans in generations
    )


def excess_of(width: int, generations: Collection[Mapping[int, tuple[int, int]]]) -> str | None:
    """What is wrong with a queue of this width that has more lanes than it may; None: it has not."""
    number = count_lanes(width, generations)
    if number <= MOST_LANES:
        return None
    return f"{width} shards for {len(generations)} priorities make {number} lanes, the most is {MOST_LANES}"


def later_of(due: int) -> str:
    """The folder, relative to the queue, of what is due at a time, milliseconds since 1970."""
    return f"later/{due // HOUR}"


def is_later(place: str) -> bool:
    """Whether a folder relative to the queue, or the place of an item, is one of what is scheduled."""
    return place.startswith("later/")


def generation_of(lane: str) -> int:
    """The generation of a lane, given by itself or at the end of a path; what is put to a later one came later."""
    match = _LANE.search(lane)
    return 0 if match is None else int(match[2])


def priority_of(lane: str) -> int:
    """The priority whose lane this is, given by itself or at the end of a path; 0 of any other folder."""
    match = _LANE.search(lane)
    return 0 if match is None or match[1] is None else int(match[1]) + FIRST_PRIORITY


def priority_at(place: str) -> int:
    """The priority of an item, by its place or path: by its lane, or of one that is scheduled by its name."""
    lane, _, name = place.rpartition("/")
    match = _URGENT.match(name)
    return priority_of(lane) if match is None else int(match[1]) + FIRST_PRIORITY


def is_lane(text: str) -> bool:
    """Whether this can hold items: a lane, or a folder of what is scheduled, relative to the queue."""
    return _PLACE.fullmatch(text) is not None
