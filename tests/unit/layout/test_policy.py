from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.layout import (
    AtLeastOnce,
    Backoff,
    ConsumeOnce,
    ConsumeTimes,
    Exponential,
    Fixed,
    Policy,
    Schedule,
)

if TYPE_CHECKING:
    from collections.abc import Callable

NOT_SECONDS: list[Any] = [-1, -0.001, float("nan"), float("inf"), True, "1", None, 10**9 + 1, 10**400, timedelta(-1)]


def test_the_default_backoff_doubles_from_one_second_up_to_a_minute() -> None:
    backoff = AtLeastOnce().backoff
    assert backoff == Exponential(initial=1, factor=2, maximum=60, jitter=0.1)
    assert [backoff.delay(attempt, lambda: 0.0) for attempt in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]


def test_jitter_shortens_a_delay_by_up_to_its_share() -> None:
    assert Exponential(10, jitter=0.5).delay(1, lambda: 0.5) == 7.5
    assert Exponential(10, jitter=1).delay(1, lambda: 1.0) == 0


@given(
    st.integers(0, 10**9),
    st.floats(0, 1e9),
    st.floats(1, allow_infinity=False),
    st.floats(0, 1),
    st.floats(0, 1, exclude_max=True),
)
def test_no_attempt_waits_longer_than_the_maximum(
    attempt: int, initial: float, factor: float, jitter: float, chance: float
) -> None:
    for maximum in (initial, 1e9):
        assert 0 <= Exponential(initial, factor, maximum, jitter).delay(attempt, lambda: chance) <= maximum


def test_the_billionth_attempt_waits_the_maximum() -> None:
    assert Exponential(jitter=0).delay(10**9) == 60
    assert Exponential(0).delay(10**9) == 0
    assert Exponential(factor=1, jitter=0).delay(10**9) == 1


def test_fixed_and_schedule_use_the_given_delays_and_repeat_the_last() -> None:
    assert [Fixed(0.5).delay(attempt) for attempt in (1, 2, 10**9)] == [0.5, 0.5, 0.5]
    schedule = Schedule([1, timedelta(minutes=1), 5.5])
    assert [schedule.delay(attempt) for attempt in (0, 1, 2, 3, 4, 10**9)] == [1, 1, 60, 5.5, 5.5, 5.5]


def test_a_backoff_uses_its_own_randomness_by_default() -> None:
    assert 0.9 <= Exponential().delay(1) <= 1


def test_timedeltas_are_seconds() -> None:
    assert Exponential(timedelta(seconds=1), maximum=timedelta(minutes=1)) == Exponential()
    assert Fixed(timedelta(milliseconds=250)) == Fixed(0.25)


@pytest.mark.parametrize("value", NOT_SECONDS)
@pytest.mark.parametrize(
    ("option", "make"),
    [
        ("initial", lambda value: Exponential(value, maximum=10**9)),
        ("maximum", lambda value: Exponential(0, maximum=value)),
        ("delay", Fixed),
        (r"delays\[1\]", lambda value: Schedule([1, value])),
    ],
)
def test_an_invalid_duration_is_refused_with_the_option_name(
    option: str, make: Callable[[Any], object], value: Any
) -> None:
    with pytest.raises(InvalidOptionError, match=f"^{option}=.*0 to 10"):
        make(value)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Exponential(factor=0.5), r"factor=0.5: .*1 or more"),
        (lambda: Exponential(factor=float("inf")), r"factor=inf"),
        (lambda: Exponential(factor=float("nan")), r"factor=nan"),
        (lambda: Exponential(factor=True), r"factor=True"),
        (lambda: Exponential(factor=10**400), r"factor=1000"),
        (lambda: Exponential(jitter=1.1), r"jitter=1.1: .*0 to 1"),
        (lambda: Exponential(jitter=-0.1), r"jitter=-0.1"),
        (lambda: Exponential(120), r"initial=120: .*maximum=60"),
        (lambda: Schedule([]), r"delays has 0 entries: .*1 to 1000"),
        (lambda: Schedule([1] * 1001), r"delays has 1001"),
        (lambda: Schedule("123"), r"delays='123'"),  # type: ignore[arg-type]
        (lambda: Schedule(5), r"delays=5"),  # type: ignore[arg-type]
        (lambda: ConsumeTimes(0), r"times=0: .*from 1"),
        (lambda: ConsumeTimes(-1), r"times=-1"),
        (lambda: ConsumeTimes(True), r"times=True"),  # noqa: FBT003 - the mistake under test
        (lambda: ConsumeTimes(2.0), r"times=2.0"),  # type: ignore[arg-type]
        (lambda: ConsumeTimes(2**31), r"times=2147483648"),
        (lambda: ConsumeTimes(1, exhausted="keep"), r"exhausted='keep': .*'dead-letter' or 'drop'"),  # type: ignore[arg-type]
        (lambda: ConsumeOnce(exhausted=None), r"exhausted=None"),  # type: ignore[arg-type]
        (lambda: ConsumeOnce(exhausted=[]), r"exhausted=\[\]"),  # type: ignore[arg-type]
        (lambda: AtLeastOnce(backoff=5), r"backoff=5: .*Exponential, Fixed or Schedule"),  # type: ignore[arg-type]
        (lambda: AtLeastOnce(backoff=Backoff()), r"backoff=.*Exponential, Fixed or Schedule"),
    ],
)
def test_an_option_out_of_range_is_refused_with_its_value_and_the_range(make: Callable[[], object], said: str) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        make()


def test_the_base_class_of_policies_cannot_be_created() -> None:
    with pytest.raises(TypeError, match="AtLeastOnce"):
        Policy()


def test_each_policy_has_its_limit_and_its_action_after_the_last_attempt() -> None:
    at_least, times, once = AtLeastOnce(), ConsumeTimes(5, exhausted="drop"), ConsumeOnce()
    assert (at_least.limit, at_least.counts_before_delivery, at_least.exhausted) == (None, False, "dead-letter")
    assert (times.limit, times.counts_before_delivery, times.exhausted) == (5, True, "drop")
    assert (once.limit, once.counts_before_delivery, once.exhausted) == (1, True, "dead-letter")
    assert times.times == 5
    assert times.backoff == Exponential()


def test_policies_with_the_same_settings_are_equal() -> None:
    assert ConsumeTimes(5) == ConsumeTimes(5)
    assert len({ConsumeTimes(5), ConsumeTimes(5), ConsumeTimes(6), ConsumeOnce(), AtLeastOnce()}) == 4
    once: Policy = ConsumeTimes(1, backoff=Fixed(0))
    assert once != ConsumeOnce()
    fixed: Backoff = Fixed(1)
    assert fixed != Schedule([1])


@pytest.mark.parametrize(
    "value",
    [
        AtLeastOnce(backoff=Fixed(5)),
        ConsumeTimes(5, backoff=Schedule([1, 2]), exhausted="drop"),
        ConsumeOnce(),
        Exponential(),
        Fixed(1),
        Schedule([1]),
    ],
)
def test_a_repr_and_a_pickle_recreate_an_equal_value(value: object) -> None:
    assert eval(repr(value)) == value
    assert pickle.loads(pickle.dumps(value)) == value


def test_a_policy_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        ConsumeTimes(5).limit = 6  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        Fixed(5).seconds = 6  # type: ignore[misc]
