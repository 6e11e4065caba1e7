"""Lanes: the parents over which a queue's items are spread, each with its own sequence counter.

The plain lane is ``items``. A queue with shards has further lanes, ``lanes/s<shard>g<generation>``. ZooKeeper's counter
does not wrap: after 2147483647 every create fails forever. So a shard whose counter nears its end continues in its next
generation. Producers put to the newest generation of each shard. Consumers visit all generations.

Each priority in use except 0 has additional lanes, ``lanes/p<priority + 128>s<shard>g<generation>``, one per shard of
the queue: a `Tier`. Delayed items are in ``later/<hour>``, hours since 1970, until they are taken.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from .fields import LAST_MOMENT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

#: Above this sequence number producers open the lane's next generation.
LANE_END: Final = 2**30
LANE_END_DIGITS: Final = f"{LANE_END:010d}"

#: Maximum number of a queue's shards.
MOST_SHARDS: Final = 1024

#: Maximum number of a shard's generations that may hold items at the same time.
MOST_GENERATIONS: Final = 16

#: Maximum number of lanes that a queue is configured for: its shards, for each priority. Consumers visit every lane.
MOST_LANES: Final = 4096

#: Maximum number of further lanes while older generations of shards are drained. With them, a queue that has the most
#: lanes can still open the next generation of a shard.
SPARE_LANES: Final = 1024

#: The most and the least urgent priority.
FIRST_PRIORITY: Final = -128
LAST_PRIORITY: Final = 127
PRIORITY_DIGITS: Final = 3

#: Milliseconds of due times that share a znode in ``later/``.
HOUR: Final = 3_600_000

_HOUR_DIGITS: Final = len(str(LAST_MOMENT // HOUR))
#: Maximum digits of the number in the data of ``later``.
_REMOVED_DIGITS: Final = 18
_LANE: Final = re.compile(r"/(?:p([0-9]{3}))?s[0-9]{1,4}g([0-9]{1,10})$")
_IN_HOUR: Final = re.compile(r"/(?:later|history)/[0-9][^/]*/[^/]+\Z")
_PLACE: Final = re.compile(r"items|lanes/(?:p[0-9]{3})?s[0-9]{1,4}g[0-9]{1,10}|later/[0-9]{1,8}")


class Tier(NamedTuple):
    """The lanes of one priority, relative to the queue."""

    priority: int
    put_lanes: tuple[str, ...]
    """The lanes for new items: the newest generation of each shard."""
    shard_lanes: tuple[tuple[str, ...], ...]
    """The lanes that may hold items: for every shard there has ever been, from the oldest generation not yet empty."""


def lane_of(shard: int, generation: int, priority: int = 0) -> str:
    """Return the lane of a shard, relative to the queue."""
    if priority:
        return f"lanes/p{priority - FIRST_PRIORITY:03d}s{shard}g{generation}"
    return "items" if shard == generation == 0 else f"lanes/s{shard}g{generation}"


def tier_of(priority: int, shards: int, width: int, generations: Mapping[int, tuple[int, int]]) -> Tier:
    """Return the lanes of a priority: ``shards`` get new items, ``width`` is the largest number there has ever been."""
    lanes: list[tuple[str, ...]] = []
    for shard in range(width):
        oldest, newest = generations.get(shard, (0, 0))
        lanes.append(tuple(lane_of(shard, generation, priority) for generation in range(oldest, newest + 1)))
    return Tier(priority, tuple(generation[-1] for generation in lanes[:shards]), tuple(lanes))


def count_lanes(width: int, generations: Iterable[Mapping[int, tuple[int, int]]]) -> int:
    """Return the number of lanes for a width, given the generations of each priority, including 0."""
    return sum(
        width + sum(newest - oldest for shard, (oldest, newest) in spans.items() if shard < width)
        for spans in generations
    )


def excess_of(width: int, generations: Collection[Mapping[int, tuple[int, int]]]) -> str | None:
    """Return a description of the excess if a width makes too many lanes; None if it does not."""
    number = count_lanes(width, generations)
    excess = f"{width} shards for {len(generations)} priorities make {number} lanes, more than {MOST_LANES}"
    if width * len(generations) > MOST_LANES:
        return excess
    if number > MOST_LANES + SPARE_LANES:
        return f"{excess}, and {SPARE_LANES} more for older generations of their shards"
    return None


def later_of(due: int) -> str:
    """Return the parent of items that are due at a time (milliseconds since 1970), relative to the queue."""
    return f"later/{due // HOUR}"


def write_removed(count: int) -> bytes:
    """Return the data of ``later``: how many messages were put into the hours that have been removed."""
    return str(count).encode()


def read_removed(data: bytes) -> int:
    """Return how many messages were put into the hours that have been removed, from the data of ``later``."""
    return int(data) if data.isdigit() and len(data) <= _REMOVED_DIGITS else 0


def is_later(place: str) -> bool:
    """Whether a parent or an item's place, relative to the queue, is that of delayed items."""
    return place.startswith("later/")


def is_in_hour(path: str) -> bool:
    """Whether a path is that of a delayed item or of a record of history; an hour's znode is made when it is needed."""
    return _IN_HOUR.search(path) is not None


def generation_of(lane: str) -> int:
    """Return the generation of a lane, given alone or at the end of a path; items in a later one were put later."""
    match = _LANE.search(lane)
    return 0 if match is None else int(match[2])


def priority_of(lane: str) -> int:
    """Return the priority of a lane, given alone or at the end of a path; 0 for any other parent."""
    match = _LANE.search(lane)
    return 0 if match is None or match[1] is None else int(match[1]) + FIRST_PRIORITY


def hour_named(name: str) -> int | None:
    """Return the hour that the name of a parent of delayed items stands for; None: it is another name."""
    if len(name) > _HOUR_DIGITS or not name.isascii() or not name.isdigit():  # of a longer number, int() may refuse it
        return None
    number = int(name)
    return number if name == str(number) else None


def hour_at(place: str) -> int | None:
    """Return the hour that a delayed item's place names, or the place of its parent; None: it names none."""
    parts = place.split("/")
    return hour_named(parts[1]) if len(parts) > 1 else None


def is_lane(text: str) -> bool:
    """Whether a text names a parent of items: a lane, or a parent of delayed items, relative to the queue."""
    return _PLACE.fullmatch(text) is not None
