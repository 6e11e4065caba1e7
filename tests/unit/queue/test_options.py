"""The arguments of callers are checked before anything is sent."""

from __future__ import annotations

import math
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiozkqueue import InvalidOptionError
from aiozkqueue.arguments import positive, required_seconds, seconds
from aiozkqueue.queue.options import PutOptions, prefix_of, put_header


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, 0.0), (1, 1.0), (2.5, 2.5), (timedelta(milliseconds=1500), 1.5), (None, None), (math.inf, None)],
)
def test_seconds_are_numbers_or_timedeltas_and_none_means_forever(value: object, expected: float | None) -> None:
    assert seconds(value, "timeout") == expected


@pytest.mark.parametrize("value", [-1, -0.001, timedelta(seconds=-1), math.nan, "1", True, Decimal(1), b"", []])
def test_other_seconds_are_refused_with_the_option_name(value: object) -> None:
    with pytest.raises(InvalidOptionError, match="timeout"):
        seconds(value, "timeout")


@given(st.floats(min_value=0, allow_infinity=False))
def test_any_finite_duration_is_accepted_unchanged(value: float) -> None:
    assert seconds(value, "timeout") == value


@given(st.floats(min_value=0, max_value=1e9))
def test_a_delay_of_up_to_thirty_years_is_accepted_unchanged(value: float) -> None:
    assert required_seconds(value, "delay") == value


@pytest.mark.parametrize("value", [None, math.inf])
def test_a_duration_that_must_end_cannot_be_infinite(value: object) -> None:
    with pytest.raises(InvalidOptionError, match="delay"):
        required_seconds(value, "delay")


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "1", None])
def test_counts_are_integers_of_at_least_one(value: object) -> None:
    assert positive(1, "limit") == 1
    with pytest.raises(InvalidOptionError, match="limit"):
        positive(value, "limit")


def test_a_put_without_options_has_no_header() -> None:
    assert put_header("jobs", {}) is None
    neutral: dict[str, Any] = dict.fromkeys(PutOptions.__annotations__) | {"priority": 0}
    assert put_header("jobs", neutral) is None


def test_a_put_with_a_key_and_headers_has_a_header() -> None:
    header = put_header("jobs", {"key": "k", "headers": {"a": "b"}})
    assert header is not None
    assert (header.key, header.headers) == ("k", {"a": "b"})
    assert prefix_of("ID", header).startswith("item-k")
    assert prefix_of("ID", None) == "item-iID-"


def test_the_headers_given_are_copied() -> None:
    given = {"a": "b"}
    header = put_header("jobs", {"headers": given})
    given["a"] = "c"
    assert header is not None
    assert header.headers == {"a": "b"}
