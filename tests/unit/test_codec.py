"""Conversion of values to payloads and back."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter

from aiozkqueue import PayloadError
from aiozkqueue.codec import AdapterCodec, BytesCodec


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
