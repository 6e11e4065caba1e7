"""Conversion of values to payloads and back."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator

from aiozkqueue import PayloadError
from aiozkqueue.codec import AdapterCodec, BytesCodec

if TYPE_CHECKING:
    from collections.abc import Callable


class Node(BaseModel):
    name: str
    children: list[Node] = Field(default_factory=list, alias="kids")


class Deep(Node):
    secret: int = 7


def codec(kind: Any) -> AdapterCodec[Any]:
    return AdapterCodec(TypeAdapter(kind))


nodes = st.recursive(
    st.builds(Node, name=st.text()),
    lambda below: st.builds(Node, name=st.text(), kids=st.lists(below, max_size=3)),
    max_leaves=5,
)


@given(nodes)
def test_a_model_comes_back_equal(value: Node) -> None:
    assert codec(Node).decode(codec(Node).encode(value, "jobs"), "jobs") == value


@given(st.dictionaries(st.text(), st.integers() | st.booleans() | st.text() | st.none()))
def test_plain_values_come_back_equal(value: dict[str, Any]) -> None:
    plain = codec(dict[str, int | bool | str | None])
    assert plain.decode(plain.encode(value, "jobs"), "jobs") == value


@given(st.binary())
def test_bytes_are_stored_as_they_are(value: bytes) -> None:
    assert BytesCodec().encode(value, "jobs") == BytesCodec().decode(value, "jobs") == value
    assert BytesCodec().encode(bytearray(value), "jobs") == BytesCodec().encode(memoryview(value), "jobs") == value


@given(st.binary())
def test_decoding_any_bytes_gives_a_value_or_a_payload_error(payload: bytes) -> None:
    with suppress(PayloadError):
        assert isinstance(codec(Node).decode(payload, "jobs"), Node)


class Reading(BaseModel):
    place: str | None = None
    celsius: float | None = None
    others: tuple[float, ...] = ()


class Constants(Reading):
    model_config = ConfigDict(ser_json_inf_nan="constants")


class Strings(Reading):
    model_config = ConfigDict(ser_json_inf_nan="strings")


class Loose(BaseModel, extra="allow"):
    place: str | None = None


class Nested(BaseModel):
    inner: Nested | None = None
    reading: float | None = None


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("kind", "make"),
    [
        (float, lambda number: number),
        (list[float], lambda number: [1.0, number]),
        (set[float], lambda number: {number}),
        (dict, lambda number: {"a": [None, number]}),
        (Any, lambda number: [number]),
        (float | None, lambda number: number),
        (Loose, lambda number: Loose.model_validate({"celsius": number})),
        (list[Reading | str], lambda number: ["here", Reading(celsius=number)]),
        (Nested, lambda number: Nested(inner=Nested(reading=number))),
        (Reading, lambda number: Reading(celsius=number)),
        (Reading, lambda number: Reading(place="here", celsius=1.0, others=(number,))),
    ],
)
def test_a_number_that_json_does_not_have_is_refused(kind: Any, make: Callable[[float], object], number: float) -> None:
    with pytest.raises(PayloadError, match=r"JSON has no NaN and no infinity.*ser_json_inf_nan"):
        codec(kind).encode(make(number), "jobs")


@pytest.mark.parametrize("kind", [Constants, Strings])
def test_a_number_that_json_does_not_have_comes_back_if_the_model_says_how(kind: type[Reading]) -> None:
    value = kind(celsius=math.nan, others=(math.inf, -math.inf, 1.5))
    again = codec(kind).decode(codec(kind).encode(value, "jobs"), "jobs")
    assert repr(again) == repr(value)


@pytest.mark.parametrize("value", [None, "null", [None, "NaN"], {"a": None, "b": [[None]], "null": 1.5}])
def test_values_with_null_in_their_json_come_back(value: object) -> None:
    assert codec(Any).decode(codec(Any).encode(value, "jobs"), "jobs") == value


def test_the_error_for_a_field_that_would_be_lost_names_it_at_any_depth() -> None:
    with pytest.raises(PayloadError, match=r"'jobs' would lose the field 'secret' of Node"):
        codec(Node).encode(Node(name="a", kids=[Node(name="b", kids=[Deep(name="c")])]), "jobs")


def test_an_error_names_the_queue_and_field_and_not_the_content() -> None:
    with pytest.raises(PayloadError, match=r"'jobs'.*name: Expected `str`") as raised:
        codec(Node).encode(Node.model_construct(name=b"hidden"), "jobs")
    assert "hidden" not in str(raised.value)
    with pytest.raises(PayloadError, match="'jobs' does not decode: name: Field required") as raised:
        codec(Node).decode(b'{"other": "hidden"}', "jobs")
    assert "hidden" not in str(raised.value)


class Base(BaseModel):
    number: int


class Renamed(Base):
    pass


class Picture(BaseModel, arbitrary_types_allowed=True):
    """Its comparison gives no truth value, as an array's."""

    number: int | str

    def __eq__(self, other: object) -> bool:
        raise ValueError

    __hash__ = None  # type: ignore[assignment]  # pydantic's models have none either


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Base | None, Renamed(number=1)),  # a subclass that adds no field
        (Any, Base(number=1)),
        (dict[str, Any], {"model": Base(number=1), "tuple": (1, 2)}),
        (Picture, Picture(number=1)),
    ],
)
def test_values_that_keep_their_fields_are_accepted(kind: Any, value: object) -> None:
    assert codec(kind).encode(value, "jobs")


class Strict(BaseModel):
    number: int

    @field_validator("number")
    @classmethod
    def check(cls, number: int) -> int:
        raise KeyError(f"hidden {number}")


def test_any_error_of_a_validator_is_a_payload_error_that_names_its_place() -> None:
    place = r"'jobs'.*: Strict.check raised KeyError \(test_codec.py, line \d+\)$"
    with pytest.raises(PayloadError, match=place) as raised:
        codec(Strict).decode(b'{"number": 1}', "jobs")
    assert "hidden" not in str(raised.value)
    with pytest.raises(PayloadError, match=place):
        codec(Strict).encode(Strict.model_construct(number=1), "jobs")
