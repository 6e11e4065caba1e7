from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.layout import EMPTY_HEADER, HEADER_LIMIT, MAGIC, DeadLetter, Header, MalformedError, decode, encode
from aiozkqueue.layout import encoded_size as size
from aiozkqueue.layout.fields import LAST_MOMENT

from .hostile import HOSTILE_JSON, json_objects, moments, texts, unknown_fields

numbers = st.integers(0, 2**31 - 1)
headers = st.builds(
    Header,
    headers=st.dictionaries(texts, texts, max_size=4),
    key=st.none() | texts,
    group=st.none() | texts,
    priority=st.integers(-(2**31) + 1, 2**31 - 1),
    enqueued_at=st.none() | moments,
    dead=st.none() | st.builds(DeadLetter, texts, numbers, moments),
    unknown=unknown_fields,
)
payloads = st.binary(max_size=64) | st.binary(max_size=64).map(MAGIC.__add__)


def envelope(header: bytes, payload: bytes = b"") -> bytes:
    return MAGIC + len(header).to_bytes(4, "big") + header + payload


def test_a_payload_without_headers_is_stored_as_it_is() -> None:
    for header in (None, Header(), EMPTY_HEADER):
        assert encode(b"hello", header) == b"hello"
        assert encode(b"", header) == b""
    assert decode(b"hello") == (Header(), b"hello")
    assert decode(b"") == (Header(), b"")


def test_reading_a_bare_payload_creates_no_new_object() -> None:
    data = b"hello"
    header, payload = decode(data)
    assert header is EMPTY_HEADER
    assert payload is data


def test_the_stored_bytes_are_pinned() -> None:
    header = Header(
        headers={"trace": "größe"},
        key="order-17",
        group="ann",
        priority=-3,
        enqueued_at=1_795_000_000_000,
        dead=DeadLetter("too often", 5, 1_795_000_000_001),
    )
    text = (
        '{"headers":{"trace":"größe"},"key":"order-17","group":"ann","priority":-3,"enqueued_at":1795000000000,'
        '"dead":{"reason":"too often","attempts":5,"at":1795000000001}}'
    ).encode()
    assert encode(b"hello", header) == b"\xf5zq1" + b"\x00\x00\x00" + bytes([len(text)]) + text + b"hello"
    assert encode(b"hello", Header(key="k")) == b'\xf5zq1\x00\x00\x00\x0b{"key":"k"}hello'
    assert encode(b"\xf5zq1") == b"\xf5zq1\x00\x00\x00\x02{}\xf5zq1"


@given(texts)
def test_no_text_is_mistaken_for_an_envelope(text: str) -> None:
    assert encode(text.encode()) == text.encode()


@given(payloads, st.none() | headers)
@example(MAGIC, None)
@example(MAGIC[:3], None)
def test_a_stored_payload_and_header_are_read_back(payload: bytes, header: Header | None) -> None:
    data = encode(payload, header)
    assert decode(data) == (header or Header(), payload)
    assert size(payload, header) == len(data)


@given(payloads, headers)
def test_rewriting_an_item_changes_no_byte(payload: bytes, header: Header) -> None:
    read, body = decode(encode(payload, header))
    assert encode(body, read) == encode(payload, header)


def test_fields_of_a_newer_version_survive_a_rewrite() -> None:
    header, payload = decode(envelope(b'{"key":"k","ttl":{"ms":5,"then":[1,null,"x"]}}', b"hello"))
    assert header.unknown == {"ttl": {"ms": 5, "then": [1, None, "x"]}}
    assert json.loads(encode(payload, header)[8:-5]) == {"key": "k", "ttl": {"ms": 5, "then": [1, None, "x"]}}


@pytest.mark.parametrize("length", range(4, 40))
def test_a_truncated_envelope_is_refused_or_has_a_shorter_payload(length: int) -> None:
    data = encode(b"payload", Header(key="k", group="g"))[:length]
    if length < len(encode(b"", Header(key="k", group="g"))):
        with pytest.raises(MalformedError):
            decode(data)
    else:
        assert b"payload".startswith(decode(data)[1])


@pytest.mark.parametrize("length", [12, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF])
def test_a_header_longer_than_the_data_is_refused(length: int) -> None:
    with pytest.raises(MalformedError, match="cannot hold a header"):
        decode(MAGIC + length.to_bytes(4, "big") + b'{"key":"k"}')


def test_a_header_over_64_kib_is_refused_unread() -> None:
    fits = b'{"key":"k"}'.ljust(64 * 1024)
    assert decode(envelope(fits))[0].key == "k"
    with pytest.raises(MalformedError, match="more than 65536"):
        decode(envelope(fits + b" "))


@pytest.mark.parametrize("text", HOSTILE_JSON)
def test_a_header_that_is_not_a_json_object_is_refused(text: bytes) -> None:
    with pytest.raises(MalformedError):
        decode(envelope(text, b"payload"))


@pytest.mark.parametrize(
    "text",
    [
        '{"headers":[]}',
        '{"headers":"x"}',
        '{"headers":{"a":1}}',
        '{"headers":{"a":null}}',
        '{"key":1}',
        '{"group":["g"]}',
        '{"priority":1.0}',
        '{"priority":true}',
        '{"priority":"1"}',
        '{"priority":2147483648}',
        '{"enqueued_at":-1}',
        '{"enqueued_at":253402300800000}',
        '{"enqueued_at":1e3}',
        '{"dead":1}',
        '{"dead":{}}',
        '{"dead":{"reason":"x","attempts":1}}',
        '{"dead":{"reason":1,"attempts":1,"at":1}}',
        '{"dead":{"reason":"x","attempts":-1,"at":1}}',
        '{"dead":{"reason":"x","attempts":1,"at":99999999999999999999}}',
    ],
)
def test_a_field_of_the_wrong_type_is_refused(text: str) -> None:
    with pytest.raises(MalformedError, match="header of an item"):
        decode(envelope(text.encode()))


@given(
    st.binary(max_size=80).map(MAGIC.__add__)
    | st.builds(envelope, st.binary(max_size=80), st.binary(max_size=8))
    | st.builds(envelope, json_objects("headers", "key", "group", "priority", "enqueued_at", "dead"), st.just(b"x"))
)
def test_hostile_bytes_are_either_read_or_refused(data: bytes) -> None:
    try:
        header, payload = decode(data)
    except MalformedError:
        return
    assert decode(encode(payload, header)) == (header, payload)


def test_a_message_with_the_largest_header_can_become_a_dead_letter() -> None:
    text = "\x01" * ((HEADER_LIMIT - len('{"headers":{"a":""}}')) // 6)
    header, payload = decode(encode(b"x", Header(headers={"a": text})))
    dead = Header(headers=header.headers, enqueued_at=1, dead=DeadLetter("\x01" * 10_000, 2**31 - 1, 1))
    assert decode(encode(payload, dead)) == (dead, b"x")


def test_a_message_with_the_largest_header_can_be_rewritten_with_its_time_of_put() -> None:
    header = Header(key="k" * (HEADER_LIMIT - len('{"key":""}')))
    stamped = replace(header, enqueued_at=LAST_MOMENT)
    assert decode(encode(b"x", stamped)) == (stamped, b"x")
    assert size(b"x", stamped) == len(encode(b"x", stamped))
    for longer in (replace(header, key=f"{header.key}k"), replace(stamped, key=f"{header.key}k")):
        with pytest.raises(InvalidOptionError, match="more than"):
            encode(b"x", longer)


@pytest.mark.parametrize(
    "fields",
    [
        {"key": "k" * HEADER_LIMIT},
        {"headers": {"a": "x" * 60_000}, "dead": {"reason": "r", "attempts": 1, "at": 1}},
        {"of another program": [1e15] * (HEADER_LIMIT // 5)},
    ],
)
def test_a_header_that_could_not_be_written_again_is_refused(fields: dict[str, object]) -> None:
    text = json.dumps(fields, separators=(",", ":")).replace("1000000000000000.0", "1e15").encode()
    assert len(text) <= 64 * 1024
    with pytest.raises(MalformedError, match=r"cannot be written again: .* more than 32768"):
        decode(envelope(text))


@pytest.mark.parametrize(
    ("header", "named"),
    [
        (Header(headers={"a": "x" * HEADER_LIMIT}), "32768"),
        (Header(headers={"a": "\ud800"}), "UTF-8"),
        (Header(key="\ud800"), "UTF-8"),
        (Header(headers={"a": 1}), "headers"),  # type: ignore[dict-item]
        (Header(headers={b"a": "x"}), "headers"),  # type: ignore[dict-item]
        (Header(key=1), "key"),  # type: ignore[arg-type]
        (Header(group=b"g"), "group"),  # type: ignore[arg-type]
        (Header(priority=True), "priority"),
        (Header(priority=1.5), "priority"),  # type: ignore[arg-type]
        (Header(priority=2**31), "priority"),
    ],
)
def test_a_header_that_could_not_be_read_back_is_refused_at_once(header: Header, named: str) -> None:
    for make in (encode, size):
        with pytest.raises(InvalidOptionError, match=named):
            make(b"x", header)


def test_a_long_reason_is_cut_between_two_characters() -> None:
    dead = DeadLetter("ä" * 10_000, 1, 1)
    assert dead.reason == "ä" * 2048
    assert DeadLetter("a" + "ä" * 10_000, 1, 1).reason == "a" + "ä" * 2047
    assert DeadLetter("bad \ud800 text", 1, 1).reason == "bad ? text"
