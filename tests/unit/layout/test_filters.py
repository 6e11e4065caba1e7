from __future__ import annotations

import json
import operator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.layout import (
    All,
    AnyOf,
    Condition,
    Filter,
    ItemName,
    OrderedEnum,
    check_condition,
    check_tags,
    condition_digest,
    decode_tags,
    encode_tags,
    item_prefix,
    name_digest,
    tags_digest,
)

PERFORMANCE = OrderedEnum("performance_class", ("low", "standard", "performance", "high_performance"))

values = st.text(max_size=8) | st.integers(-(2**63) + 1, 2**63 - 1)
tags = st.dictionaries(st.text(min_size=1, max_size=8), values, max_size=5)


def test_the_stored_bytes_and_the_digest_are_pinned() -> None:
    data = encode_tags({"size": 3, "performance_class": "standard"})
    assert data == b'{"performance_class":"standard","size":3}'
    assert tags_digest(data) == "banmnpbaohq7afay"


@given(tags)
def test_tags_are_read_back_whatever_their_order(given_tags: dict[str, str | int]) -> None:
    data = encode_tags(given_tags)
    assert decode_tags(data) == given_tags == check_tags("q", given_tags)
    assert encode_tags(dict(reversed(given_tags.items()))) == data


@given(st.binary(max_size=60) | st.dictionaries(st.text(), st.none() | st.floats() | st.booleans()).map(json.dumps))
def test_malformed_tags_raise_no_error(data: bytes | str) -> None:
    found = decode_tags(data if isinstance(data, bytes) else data.encode())
    assert PERFORMANCE.at_least("low").accepts(found) in (True, False)


def test_a_malformed_tag_leaves_the_others_as_they_are() -> None:
    assert decode_tags(b'{"a":[1],"b":"x","c":true,"d":1.5,"e":7,"f":99999999999999999999}') == {"b": "x", "e": 7}


@pytest.mark.parametrize(
    "wrong",
    [
        "a=b",
        ["a"],
        {"": "x"},
        {1: "x"},
        {"a": 1.5},
        {"a": None},
        {"a": True},
        {"a": b"x"},
        {"a": 2**63},
        {"a": "\ud800"},
        {"a": "x" * 5000},
    ],
)
def test_an_invalid_tag_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidOptionError, match="queue 'q'"):
        check_tags("q", wrong)


letters = st.text(st.sampled_from("abfi1"), min_size=1, max_size=4)


@given(st.lists(letters, max_size=4), letters)
def test_the_digest_of_a_name_is_the_one_that_its_parser_finds(fields: list[str], message_id: str) -> None:
    name = "-".join(["item", *fields, f"i{message_id}", "0000000007"])
    parsed = ItemName.parse(name)
    assert parsed is not None
    assert name_digest(name) == parsed.tags


def test_a_name_without_tags_has_no_digest() -> None:
    assert name_digest("item-0000000007") is None
    assert name_digest(item_prefix("fX") + "0000000007") is None
    assert name_digest(item_prefix("X", due=1, group="g", key="k", tags="abc") + "0000000007") == "abc"
    assert name_digest("something-fx-else") is None


@pytest.mark.parametrize(
    ("method", "consumer", "takes"),
    [
        ("absolute", "standard", {"standard"}),
        ("absolute", "high_performance", {"high_performance"}),
        ("at_least", "low", {"low"}),
        ("at_least", "performance", {"low", "standard", "performance"}),
        ("at_least", "high_performance", set(PERFORMANCE.values)),
    ],
)
def test_a_class_takes_messages_that_require_it_exactly_or_at_least(
    method: str, consumer: str, takes: set[str]
) -> None:
    chosen = getattr(PERFORMANCE, method)(consumer)
    assert {value for value in PERFORMANCE.values if chosen.accepts({"performance_class": value})} == takes


COMPARISONS: dict[str, Any] = {
    "eq": operator.eq,
    "gt": operator.gt,
    "ge": operator.ge,
    "lt": operator.lt,
    "le": operator.le,
}


@given(st.sampled_from(sorted(COMPARISONS)), values, values)
def test_texts_and_integers_compare_among_themselves_only(comparison: Any, own: str | int, found: str | int) -> None:
    comparable = type(own) is type(found)
    passes = Filter("tag", comparison, own).accepts({"tag": found, "other": 1})
    assert passes is (comparable and COMPARISONS[comparison](found, own))


def test_a_message_without_a_tag_fails_every_filter_on_it() -> None:
    for condition in (Filter("a", "lt", 5), PERFORMANCE.at_least("high_performance")):
        assert not condition.accepts({})
        assert not All(condition).accepts({"b": 1})
        assert not AnyOf(1, condition).accepts({"b": 1})


def test_a_value_outside_the_enum_fails_the_filter() -> None:
    for stray in ("turbo", 3, ""):
        assert not PERFORMANCE.at_least("high_performance").accepts({"performance_class": stray})


@given(st.lists(st.booleans(), min_size=1, max_size=6), st.data())
def test_all_and_any_n_of_several_filters(passing: list[bool], data: st.DataObject) -> None:
    yes = Filter("yes", "eq", 1)
    filters = [yes if passes else Filter("no", "eq", 1) for passes in passing]
    n = data.draw(st.integers(1, len(passing)))
    assert All(*filters).accepts({"yes": 1}) is all(passing)
    assert AnyOf(n, *filters).accepts({"yes": 1}) is (sum(passing) >= n)
    assert All(AnyOf(n, *filters), yes).accepts({"yes": 1}) is (sum(passing) >= n)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Filter("a", "ne", 1),  # type: ignore[arg-type]
        lambda: Filter("", "eq", 1),
        lambda: Filter("a", "eq", 1.5),  # type: ignore[arg-type]
        lambda: Filter("a", "eq", value=True),
        lambda: Filter(PERFORMANCE, "ge", "turbo"),
        lambda: PERFORMANCE.at_least("turbo"),
        lambda: PERFORMANCE.absolute(2),  # type: ignore[arg-type]
        lambda: OrderedEnum("c", ()),
        lambda: OrderedEnum("c", ("a", "a")),
        lambda: OrderedEnum("c", "abc"),
        lambda: OrderedEnum("c", None),  # type: ignore[arg-type]
        lambda: OrderedEnum("c", 5),  # type: ignore[arg-type]
        lambda: OrderedEnum("", ("a",)),
        lambda: OrderedEnum("c", ("a", 1)),  # type: ignore[arg-type]
        All,
        lambda: All("a"),  # type: ignore[arg-type]
        lambda: All(None),  # type: ignore[arg-type]
        lambda: AnyOf(0, Filter("a", "eq", 1)),
        lambda: AnyOf(2, Filter("a", "eq", 1)),
        lambda: AnyOf(bool(1), Filter("a", "eq", 1)),
        lambda: check_condition({"a": 1}),
        lambda: check_condition(lambda _: True),
    ],
)
def test_an_invalid_filter_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidOptionError):
        wrong()


def test_equal_filters_share_a_digest_and_different_ones_do_not() -> None:
    def make(n: int) -> Condition:
        return AnyOf(n, Filter("a", "eq", 1), All(PERFORMANCE.at_least("low"), Filter("b", "gt", "x")))

    assert make(1) == make(1)
    assert condition_digest(make(1)) == condition_digest(make(1)) != condition_digest(make(2))
