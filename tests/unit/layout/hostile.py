"""Bytes that another program or damage may have left in ZooKeeper, and values that can be stored."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hypothesis import strategies as st

if TYPE_CHECKING:
    from pydantic import JsonValue

BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

ids = st.text(BASE62, min_size=1, max_size=24)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
moments = st.integers(0, 253_402_300_799_999)

json_values: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)

#: Fields of another version: no name of ours begins so.
unknown_fields = st.dictionaries(texts.map("x-".__add__), json_values, max_size=3)


def json_objects(*names: str) -> st.SearchStrategy[bytes]:
    """JSON objects with these fields, of any type."""
    return st.dictionaries(st.sampled_from(names) | texts, json_values, max_size=len(names) + 2).map(
        lambda value: json.dumps(value).encode()
    )


#: What a JSON parser must survive: each is refused, none may hang or exhaust anything.
HOSTILE_JSON = [
    b"",
    b" ",
    b"{",
    b"{}}",
    b"[]",
    b"null",
    b"1",
    b'"text"',
    b"\xff\xfe",
    b'{"attempts":1,"claim":"\xff"}',
    b'{"attempts":1,"claim":"\\ud800"}',
    b'{"attempts":1,"x":NaN}',
    b'{"attempts":1,"x":1e999}',
    b'{"attempts":1,"x":' + b"9" * 5_000 + b"}",
    b"[" * 60_000,
    b'{"x":' * 12_000,
    b'{"attempts":1,"x":' + b"[" * 30_000 + b"]" * 30_000 + b"}",
    b'{"attempts":1,"x":"' + b"a" * 70_000 + b'"}',
    b'{"attempts":1}' + b" " * 70_000,
    b"\x00" * 1_000,
]
