"""The format of bundles: names, data and records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiozkqueue.layout import (
    MOST_BUNDLED,
    BundledMessage,
    BundleName,
    BundleRecord,
    IdSource,
    ItemName,
    MalformedError,
    batch_field,
    bundle_prefix,
    candidate_id,
    decode_bundle,
    encode_bundle,
    key_hash,
    messages_in,
    plain_prefix,
    with_field,
)
from aiozkqueue.layout.bundles import ERROR_LIMIT
from aiozkqueue.queue.candidates.batches import batch_lock_of

IDS = ["AAAAAAAAAAAA000001", "AAAAAAAAAAAA000002"]
NAME = "bundle-m2-sAAAAAAAAAAAA000001-lAAAAAAAAAAAA000002-iAAAAAAAAAAAA000003-0000000007"


def encoded(messages: list[BundledMessage]) -> bytes:
    """Return the bytes of a bundle of messages."""
    return encode_bundle([message.id for message in messages], [message.data for message in messages])


def test_the_bytes_of_a_bundle_are_fixed() -> None:
    messages = [BundledMessage("AAAAAAAAAAAA000001", b"one"), BundledMessage("AAAAAAAAAAAA000002", b"", 1)]
    data = b"\xf5zqb\x01\x00\x02AAAAAAAAAAAA000001\x00\x00\x00\x03000002\x00\x00\x00\x00one"
    assert encoded(messages) == data
    assert decode_bundle(data) == messages


def test_the_name_of_a_bundle_is_fixed() -> None:
    assert f"{bundle_prefix('AAAAAAAAAAAA000003', IDS)}0000000007" == NAME
    name = BundleName.parse(NAME)
    assert name == (2, "AAAAAAAAAAAA000001", "AAAAAAAAAAAA000002", "AAAAAAAAAAAA000003", "0000000007")
    assert (candidate_id(NAME), messages_in(NAME)) == ("AAAAAAAAAAAA000003", 2)
    assert name.may_hold("AAAAAAAAAAAA000002")
    assert not name.may_hold("AAAAAAAAAAAA000003")


def test_the_name_of_a_bundle_of_a_pending_batch_is_fixed() -> None:
    stage = "b" + key_hash("a batch")
    assert batch_field(with_field(plain_prefix("AAAAAAAAAAAA000001"), stage)) == f"{stage}-"
    staged = f"{bundle_prefix('AAAAAAAAAAAA000003', IDS, f'{stage}-')}0000000007"
    assert staged == NAME.replace("-m2-", f"-m2-{stage}-")
    assert BundleName.parse(staged) == BundleName.parse(NAME)
    assert (candidate_id(staged), messages_in(staged), batch_lock_of(staged)) == ("AAAAAAAAAAAA000003", 2, stage)
    assert batch_lock_of(NAME) is None


@pytest.mark.parametrize("field", ["k" + "a" * 32, "bshort", "r0123456789012345", "u1", "g" + "a" * 32])
def test_puts_with_other_fields_in_their_names_are_in_no_bundle(field: str) -> None:
    assert batch_field(with_field(plain_prefix("AAAAAAAAAAAA000001"), field)) is None
    assert batch_field(with_field(f"item-b{'a' * 32}-iAAAAAAAAAAAA000001-", field)) is None


def test_programs_that_do_not_know_bundles_skip_them() -> None:
    assert ItemName.parse(NAME) is None


@pytest.mark.parametrize("count", [0, MOST_BUNDLED + 1, 999])
def test_a_name_with_an_impossible_number_of_messages_is_not_a_bundle(count: int) -> None:
    assert BundleName.parse(NAME.replace("-m2-", f"-m{count}-")) is None


def test_the_bytes_of_a_record_are_fixed() -> None:
    record = BundleRecord("claim", 0b101, {1: 3})
    assert record.encode() == b'{"claim":"claim","done":"5","attempts":{"1":3}}'
    assert BundleRecord.decode(record.encode()) == record
    assert BundleRecord("claim").encode() == b'{"claim":"claim"}'


def test_the_errors_of_a_record_are_kept_if_they_fit() -> None:
    record = BundleRecord("claim", 0, {1: 3, 2: 1}, {1: "OSError: no paper"})
    assert record.encode() == b'{"claim":"claim","attempts":{"1":3,"2":1},"errors":{"1":"OSError: no paper"}}'
    assert BundleRecord.decode(record.encode()) == record
    attempts = dict.fromkeys(range(MOST_BUNDLED), 1)
    long = BundleRecord("claim", 0, attempts, dict.fromkeys(range(MOST_BUNDLED), "x" * 10_000))
    assert BundleRecord.decode(long.encode()).errors == dict.fromkeys(range(MOST_BUNDLED), "x" * ERROR_LIMIT)
    longer = BundleRecord("claim", 0, attempts, dict.fromkeys(range(MOST_BUNDLED), "\0" * 10_000))
    assert BundleRecord.decode(longer.encode()) == BundleRecord("claim", 0, attempts)
    for errors in (b"5", b'{"7":"of no attempt","1":5,"x":"y"}'):
        foreign = b'{"claim":"claim","attempts":{"1":3},"errors":' + errors + b"}"
        assert BundleRecord.decode(foreign) == BundleRecord("claim", 0, {1: 3})


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=MOST_BUNDLED), st.binary(min_size=16, max_size=16))
def test_every_bundle_is_read_as_it_was_written(bodies: list[bytes], entropy: bytes) -> None:
    ids = IdSource(lambda size: entropy[:size])
    messages = [BundledMessage(ids.next(), body, position) for position, body in enumerate(bodies)]
    assert decode_bundle(encoded(messages)) == messages


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=4), st.integers(0, 200), st.integers(0, 255))
def test_a_damaged_bundle_is_refused_or_read_within_its_size(bodies: list[bytes], where: int, byte: int) -> None:
    ids = IdSource(lambda size: b"0" * size)
    data = bytearray(encode_bundle(ids.take(len(bodies)), bodies))
    data[where % len(data)] = byte
    try:
        messages = decode_bundle(bytes(data))
    except MalformedError:
        return
    assert sum(len(message.data) for message in messages) <= len(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xf5zqb",
        b"\xf5zqb\x02\x00\x01AAAAAAAAAAAA000001\x00\x00\x00\x00",
        b"\xf5zqb\x01\x00\x00AAAAAAAAAAAA",
        b"\xf5zqb\x01\xff\xffAAAAAAAAAAAA",
        b"\xf5zqb\x01\x00\x01AAAAAAAAAAAA000001\x00\x00\x00\x01",
        b"\xf5zqb\x01\x00\x01AAAAAAAAAAAA000001\xff\xff\xff\xff",
        b"\xf5zqb\x01\x00\x01AAAAAAAAAAAA000001\x00\x00\x00\x00rest",
        b"\xf5zqb\x01\x00\x02AAAAAAAAAAAA000001\x00\x00\x00\x00000001\x00\x00\x00\x00",
        b"\xf5zqb\x01\x00\x01AAAAAAAAAAAA\xff00001\x00\x00\x00\x00",
        b"\xf5zqb\x01\x00\x01AAAAAAAAAAAA/00001\x00\x00\x00\x00",
    ],
)
def test_malformed_bundles_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedError):
        decode_bundle(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"claim":1}',
        b'{"claim":"x","done":"xyz"}',
        b'{"claim":"x","done":"00000000000000001"}',
        b'{"claim":"x","attempts":[]}',
        b'{"claim":"x","attempts":{"100":1}}',
        b'{"claim":"x","attempts":{"1":true}}',
        b'{"claim":"x","attempts":{"1":-1}}',
    ],
)
def test_malformed_records_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedError):
        BundleRecord.decode(data)
