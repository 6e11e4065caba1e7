"""Bytes that another program may store in ZooKeeper or that are damaged, and values that can be stored."""

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

#: Fields of another version, with a prefix that none of our names has.
unknown_fields = st.dictionaries(texts.map("x-".__add__), json_values, max_size=3)


def json_objects(*names: str) -> st.SearchStrategy[bytes]:
    """Generate JSON objects with these fields, which may have any type."""
    return st.dictionaries(st.sampled_from(names) | texts, json_values, max_size=len(names) + 2).map(
        lambda value: json.dumps(value).encode()
    )


#: Texts that a JSON parser must refuse, without hanging or exhausting memory.
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
