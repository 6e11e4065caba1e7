"""The lanes that puts choose: each lane in turn, and the same lanes again for puts whose lane was missing."""

from __future__ import annotations

from collections import Counter

from aiozkqueue.layout import QueuePaths, StoredConfig
from aiozkqueue.queue.state.lanes import PutLanes

PATHS = QueuePaths("/zms", "jobs")


def lanes_of(config: StoredConfig) -> PutLanes:
    return PutLanes(config, PATHS)


def test_plain_items_go_to_each_lane_in_turn() -> None:
    lanes = lanes_of(StoredConfig(shards=4))
    chosen = [lanes.next() for _ in range(8)]
    assert chosen[:4] == chosen[4:]
    assert set(chosen) == {"items", "lanes/s1g0", "lanes/s2g0", "lanes/s3g0"}
    assert lanes.take_chosen() == set(chosen)
    assert lanes.take_chosen() == set()


def test_puts_that_are_sent_again_keep_their_lanes() -> None:
    lanes = lanes_of(StoredConfig(shards=8, priorities={5: {}}))
    lanes.next()
    before = lanes.turn

    def choose() -> list[str]:
        return [lanes.next() for _ in range(3)] + [lanes.of_priority(5) for _ in range(2)] + [lanes.next_path()]

    first = choose()
    lanes.rewind(before)
    assert choose() == first


def test_rewinding_a_later_choice_does_not_move_the_turn_forward() -> None:
    lanes = lanes_of(StoredConfig(shards=8))
    earlier = lanes.turn
    lanes.next()
    later = lanes.turn
    lanes.next()
    lanes.rewind(earlier)
    lanes.rewind(later)
    assert lanes.turn == earlier


def test_a_rewound_rotation_stays_even() -> None:
    lanes = lanes_of(StoredConfig(shards=3))
    before = lanes.turn
    for _ in range(3):
        lanes.next()
    lanes.rewind(before)
    assert set(Counter(lanes.next() for _ in range(9)).values()) == {3}


def test_a_queue_with_one_lane_has_nothing_to_choose() -> None:
    lanes = lanes_of(StoredConfig())
    assert (lanes.next(), lanes.next_path()) == ("items", "/zms/jobs/items")
    assert lanes.take_chosen() == set()


def test_the_lanes_of_a_group_and_of_a_key_are_reported_as_chosen() -> None:
    lanes = lanes_of(StoredConfig(shards=64, groups=64))
    chosen = {lanes.of_group("group"), lanes.of_key("key")}
    assert lanes.take_chosen() == chosen
