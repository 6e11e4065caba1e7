from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.layout import (
    DELETED,
    AtLeastOnce,
    ConsumeOnce,
    ConsumeTimes,
    Exponential,
    Fixed,
    History,
    MalformedError,
    QueueConfig,
    Schedule,
    StoredConfig,
)

from .hostile import HOSTILE_JSON, json_objects, json_values, unknown_fields

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import JsonValue

seconds = st.floats(0, 1e9) | st.integers(0, 10**9)
backoffs = (
    st.builds(Fixed, seconds)
    | st.builds(Schedule, st.lists(seconds, min_size=1, max_size=5))
    | st.builds(
        Exponential,
        st.floats(0, 1),
        st.floats(1, allow_infinity=False),
        st.floats(1, 1e9),
        st.floats(0, 1),
    )
)
dispositions = st.sampled_from(["dead-letter", "drop"])
policies = (
    st.builds(AtLeastOnce, backoff=backoffs)
    | st.builds(ConsumeTimes, st.integers(1, 2**31 - 1), backoff=backoffs, exhausted=dispositions)
    | st.builds(ConsumeOnce, exhausted=dispositions)
)
lifetimes = st.none() | st.floats(0.001, 1e9)
configurations = st.builds(
    StoredConfig,
    policy=st.none() | policies,
    max_size=st.none() | st.integers(0, 2**31 - 1),
    collapse=st.none() | st.booleans(),
    ttl=lifetimes,
    expired=st.none() | dispositions,
)


@pytest.mark.parametrize(
    ("policy", "stored"),
    [
        (None, "{}"),
        (
            AtLeastOnce(),
            (
                '{"policy": {"kind": "at-least-once", "backoff": '
                '{"kind": "exponential", "initial": 1.0, "factor": 2.0, "maximum": 60.0, "jitter": 0.1}}}'
            ),
        ),
        (
            ConsumeTimes(5, backoff=Schedule([1, 60]), exhausted="drop"),
            (
                '{"policy": {"kind": "consume-times", "times": 5, "exhausted": "drop", "backoff": '
                '{"kind": "schedule", "delays": [1.0, 60.0]}}}'
            ),
        ),
        (
            ConsumeTimes(2, backoff=Fixed(0.5)),
            (
                '{"policy": {"kind": "consume-times", "times": 2, "exhausted": "dead-letter", "backoff": '
                '{"kind": "fixed", "delay": 0.5}}}'
            ),
        ),
        (ConsumeOnce(), '{"policy": {"kind": "consume-once", "exhausted": "dead-letter"}}'),
    ],
)
def test_the_stored_bytes_are_pinned(policy: AtLeastOnce | None, stored: str) -> None:
    assert StoredConfig(policy=policy).encode() == stored.encode()
    assert StoredConfig.decode(stored.encode()) == StoredConfig(policy=policy)


def test_a_queue_made_by_another_program_has_the_default_configuration() -> None:
    assert StoredConfig.decode(b"") == StoredConfig()
    assert StoredConfig().policy is None
    assert StoredConfig.decode(b'{"policy": null}') == StoredConfig()


def test_whole_seconds_without_a_decimal_point_are_read_too() -> None:
    stored = b'{"policy":{"kind":"at-least-once","backoff":{"kind":"schedule","delays":[1,2]}}}'
    assert StoredConfig.decode(stored).policy == AtLeastOnce(backoff=Schedule([1, 2]))


@given(configurations)
def test_a_configuration_is_read_back(config: StoredConfig) -> None:
    assert StoredConfig.decode(config.encode()) == config


@given(configurations, unknown_fields, configurations)
def test_an_older_client_never_erases_settings_of_a_newer_one(
    config: StoredConfig, newer: dict[str, JsonValue], other: StoredConfig
) -> None:
    stored = {**newer, **json.loads(config.encode())}
    read = StoredConfig.decode(json.dumps(stored).encode())
    assert json.loads(read.encode()) == stored
    rewritten = replace(other, stored=read.stored)
    assert json.loads(rewritten.encode()) == {**newer, **json.loads(other.encode())}


def test_a_newer_setting_inside_a_policy_is_kept_by_a_policy_of_the_same_kind() -> None:
    read = StoredConfig.decode(
        b'{"policy":{"kind":"consume-times","times":5,"exhausted":"drop","per":"day",'
        b'"backoff":{"kind":"fixed","delay":1,"spread":2}}}'
    )
    changed = replace(read, policy=ConsumeTimes(6, backoff=Fixed(3)))
    assert json.loads(changed.encode()) == {
        "policy": {
            "kind": "consume-times",
            "times": 6,
            "exhausted": "dead-letter",
            "per": "day",
            "backoff": {"kind": "fixed", "delay": 3.0, "spread": 2},
        }
    }
    once = replace(read, policy=ConsumeOnce())
    assert json.loads(once.encode()) == {"policy": {"kind": "consume-once", "exhausted": "dead-letter"}}
    assert json.loads(replace(read, policy=None).encode()) == {}


@pytest.mark.parametrize("data", [text for text in HOSTILE_JSON if text])
def test_a_configuration_that_is_not_a_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedError):
        StoredConfig.decode(data.replace(b"attempts", b"policy"))


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ('"once"', "policy"),
        ("{}", "kind"),
        ('{"kind":"twice"}', "twice"),
        ('{"kind":["at-least-once"]}', "kind"),
        ('{"kind":"at-least-once"}', "backoff"),
        ('{"kind":"at-least-once","backoff":{"kind":"cubic"}}', "cubic"),
        ('{"kind":"at-least-once","backoff":{"kind":"fixed","delay":"1"}}', "delay"),
        ('{"kind":"at-least-once","backoff":{"kind":"fixed","delay":true}}', "delay"),
        ('{"kind":"at-least-once","backoff":{"kind":"fixed","delay":-1}}', "delay=-1"),
        ('{"kind":"at-least-once","backoff":{"kind":"schedule","delays":[]}}', "delays has 0"),
        ('{"kind":"at-least-once","backoff":{"kind":"schedule","delays":{"a":1}}}', "delays"),
        ('{"kind":"consume-once","exhausted":"explode"}', "exhausted"),
        ('{"kind":"consume-times","times":0,"exhausted":"drop","backoff":{"kind":"fixed","delay":1}}', "times=0"),
        ('{"kind":"consume-times","times":1.5,"exhausted":"drop","backoff":{"kind":"fixed","delay":1}}', "times"),
    ],
)
def test_an_invalid_stored_policy_is_refused_with_a_reason(policy: str, said: str) -> None:
    with pytest.raises(MalformedError, match=said):
        StoredConfig.decode(f'{{"policy":{policy}}}'.encode())


@given(
    st.binary(min_size=1, max_size=80)
    | json_objects("policy")
    | st.dictionaries(
        st.sampled_from(["kind", "times", "exhausted", "backoff"]),
        st.sampled_from(["at-least-once", "consume-times", "drop", {"kind": "fixed", "delay": 10**400}]) | json_values,
    ).map(lambda policy: json.dumps({"policy": policy}).encode())
)
def test_hostile_bytes_are_either_read_or_refused(data: bytes) -> None:
    try:
        config = StoredConfig.decode(data)
    except MalformedError:
        return
    assert StoredConfig.decode(config.encode()) == config


def test_a_value_that_is_not_a_policy_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="policy is Fixed"):
        QueueConfig(policy=Fixed(1))  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [-1, 1.5, True, "many", 2**31])
def test_a_max_size_that_is_not_a_count_is_refused(size: int) -> None:
    with pytest.raises(InvalidOptionError, match="max_size="):
        QueueConfig(max_size=size)


def test_a_change_of_shards_or_size_keeps_the_other_settings() -> None:
    decided = StoredConfig(policy=ConsumeOnce(), max_size=5)
    assert decided.changed(QueueConfig(shards=3)) == StoredConfig(policy=ConsumeOnce(), max_size=5, shards=3)
    assert decided.changed(QueueConfig(max_size=0)).max_size == 0


def test_a_configuration_that_could_not_be_read_again_is_not_written() -> None:
    crowded = StoredConfig.decode(b'{"x":"' + b"y" * (65_536 - 8) + b'"}')
    with pytest.raises(InvalidOptionError, match="65536"):
        replace(crowded, policy=ConsumeOnce()).encode()


@pytest.mark.parametrize(
    "settings",
    [
        {"collapse": "yes"},
        {"ttl": 0},
        {"ttl": -1},
        {"ttl": float("nan")},
        {"ttl": "60"},
        {"ttl": True},
        {"ttl": 1e10},
        {"expired": "forget"},
    ],
)
def test_a_setting_out_of_range_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(InvalidOptionError, match=next(iter(settings))):
        QueueConfig(**settings)  # type: ignore[arg-type]


#: Values that a program may pass by mistake, such as 1 for True.
ODD: list[object] = [
    *(0, 1, -1, 2, 7, 2**31, 0.0, 1.0, -0.0, 1.5, math.nan, math.inf, -math.inf, 1e-9, 1e300, True, False),
    *(
        "",
        "x",
        "any",
        "producer",
        "drop",
        "dead-letter",
        b"x",
        (),
        (1,),
        [],
        [1.5],
        {},
        timedelta(0),
        timedelta(days=1),
    ),
    *(AtLeastOnce(), History(), Fixed(1), object, Fraction(1, 3), Decimal("1.5")),
]


@pytest.mark.parametrize("setting", [field.name for field in fields(QueueConfig)])
def test_a_setting_is_refused_or_can_be_read_back(setting: str) -> None:
    """A configuration that cannot be read back makes the queue unusable for all programs."""
    wrong = []
    for value in ODD:
        try:
            config = StoredConfig().changed(QueueConfig(**{setting: value}))  # type: ignore[arg-type]  # of any setting
        except InvalidOptionError:
            continue
        if StoredConfig.decode(config.encode()).encode() != config.encode():
            wrong.append(value)
    assert wrong == []


@pytest.mark.parametrize(
    "make",
    [
        ConsumeTimes,
        lambda value: ConsumeTimes(2, backoff=value),
        lambda value: ConsumeTimes(2, exhausted=value),
        lambda value: ConsumeOnce(exhausted=value),
        lambda value: AtLeastOnce(backoff=value),
        lambda value: AtLeastOnce(backoff=Fixed(value)),
        lambda value: AtLeastOnce(backoff=Exponential(value)),
        lambda value: AtLeastOnce(backoff=Exponential(factor=value)),
        lambda value: AtLeastOnce(backoff=Exponential(maximum=value)),
        lambda value: AtLeastOnce(backoff=Exponential(jitter=value)),
        lambda value: AtLeastOnce(backoff=Schedule([value])),
        lambda value: AtLeastOnce(backoff=Schedule(value)),
        lambda value: History(lifetime=value),
        lambda value: History(most=value),
        lambda value: History(payload=value),
    ],
)
def test_a_part_of_a_setting_is_refused_or_can_be_read_back(make: Callable[[Any], Any]) -> None:
    wrong = []
    for value in ODD:
        try:
            part = make(value)
            settings: dict[str, Any] = {"history" if isinstance(part, History) else "policy": part}
            config = StoredConfig().changed(QueueConfig(**settings))
        except InvalidOptionError:
            continue
        if StoredConfig.decode(config.encode()) != config:
            wrong.append(value)
    assert wrong == []


def test_a_change_of_flags_keeps_the_other_settings() -> None:
    config = StoredConfig(policy=ConsumeOnce(), ttl=timedelta(minutes=1), collapse=True)
    changed = config.changed(QueueConfig(expired="dead-letter", collapse=False))
    assert changed == StoredConfig(policy=ConsumeOnce(), ttl=60, collapse=False, expired="dead-letter")


def test_an_infinite_ttl_removes_the_lifetime() -> None:
    config = StoredConfig(ttl=60).changed(QueueConfig(ttl=math.inf))
    assert config.lifetime is None
    assert StoredConfig.decode(config.encode()) == StoredConfig()


def test_a_configuration_remembers_that_an_earlier_policy_counted_attempts() -> None:
    counting, other = StoredConfig(policy=ConsumeTimes(3)), StoredConfig(policy=AtLeastOnce())
    assert not other.changed(by=QueueConfig(shards=2)).counts
    switched = counting.changed(by=other)
    assert switched.counts
    assert StoredConfig.decode(switched.encode()).counts
    assert switched.changed(by=QueueConfig(ttl=5)).counts


@pytest.mark.parametrize(
    ("settings", "number"),
    [
        ({"shards": 1024, "priorities": {priority: {} for priority in range(1, 4)}}, 4096),
        ({"shards": 1, "priorities": {priority: {} for priority in range(1, 128)}}, 128),
        ({"shards": 16, "width": 1024, "priorities": {1: {}}}, 2048),
        ({"shards": 2, "generations": {0: (3, 6), 1: (0, 1), 9: (0, 5)}, "priorities": {5: {1: (7, 8)}}}, 9),
    ],
)
def test_the_lane_count_equals_the_number_of_listed_lanes(settings: dict[str, object], number: int) -> None:
    config = StoredConfig(**settings)  # type: ignore[arg-type]
    assert config.lane_count == len(config.lanes) == number
    assert StoredConfig.decode(config.encode()) == config


def test_the_widest_queue_can_keep_some_older_generations() -> None:
    widest: dict[str, object] = {"shards": 1024, "priorities": {"1": {}, "2": {}, "3": {}}}
    spare = {str(lane): [0, 1] for lane in range(1024)}
    assert StoredConfig.decode(json.dumps({**widest, "generations": spare}).encode()).lane_count == 5120
    with pytest.raises(MalformedError, match="make 5121 lanes, more than 4096, and 1024 more for older generations"):
        StoredConfig.decode(json.dumps({**widest, "generations": {**spare, "0": [0, 2]}}).encode())


def test_the_oldest_empty_generations_are_left_out() -> None:
    config = StoredConfig(shards=2, generations={0: (3, 6), 1: (0, 1)}, priorities={5: {1: (7, 9)}})
    plain = ("lanes/s0g3", "lanes/s0g4", "lanes/s0g5", "lanes/s1g0")
    assert config.older_lanes == (*plain, "lanes/p133s1g7", "lanes/p133s1g8")
    left = config.without({"lanes/s0g3", "lanes/s0g5", "lanes/s1g0", "lanes/s1g1", "lanes/p133s1g7", "lanes/p133s1g8"})
    assert (left.generations, left.priorities) == ({0: (4, 6), 1: (1, 1)}, {5: {1: (9, 9)}})
    assert config.without(set()) == config


@pytest.mark.parametrize(
    "settings",
    [
        {"shards": 1024, "priorities": {str(priority): {} for priority in range(1, 5)}},
        {"shards": 1, "width": 1024, "priorities": {str(priority): {} for priority in range(-128, 128)}},
        {"shards": 1024, "generations": {str(lane): [0, 15] for lane in range(1024)}},
    ],
)
def test_more_lanes_than_a_consumer_should_visit_are_refused_in_a_configuration(settings: dict[str, object]) -> None:
    with pytest.raises(MalformedError, match="lanes, more than 4096"):
        StoredConfig.decode(json.dumps(settings).encode())
    with pytest.raises(InvalidOptionError, match="use fewer shards or fewer priorities"):
        StoredConfig(shards=1024, priorities={priority: {} for priority in range(1, 5)})


def test_the_settings_of_a_configuration_show_nothing_that_clients_record_beside_them() -> None:
    recorded = {"shards": 2, "groups": 2, "width": 4, "scheduled": True, "priorities": {"5": {}}, "newer": 1}
    config = StoredConfig.decode(json.dumps(recorded).encode())
    assert config.settings == QueueConfig(shards=2)
    assert type(config.settings) is QueueConfig
    assert not {"groups", "width", "scheduled", "priorities", "stored"} & set(dir(config.settings))
    assert json.loads(config.changed(by=config.settings).encode()) == recorded


def test_the_mark_of_a_deleted_queue_is_not_a_configuration() -> None:
    with pytest.raises(MalformedError, match="the queue was deleted"):
        StoredConfig.decode(DELETED)
