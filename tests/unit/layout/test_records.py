from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiozkqueue.layout import AttemptRecord, IdSource, KeyHolder, LockRecord, MalformedError, lock_text

from .hostile import HOSTILE_JSON, ids, json_objects, moments, texts, unknown_fields

if TYPE_CHECKING:
    from pydantic import JsonValue

FOREIGN = LockRecord("", "", None)


def test_the_bytes_of_a_lock_are_pinned() -> None:
    assert LockRecord("A1", "B2").encode() == b'{"claim":"A1","owner":"B2"}'
    assert LockRecord("A1", "B2", 5).encode() == b'{"claim":"A1","owner":"B2","end":5}'
    assert LockRecord("A1", 'the "host"', 5).encode() == b'{"claim":"A1","owner":"the \\"host\\"","end":5}'


def test_the_lock_of_a_claim_is_written_as_any_other() -> None:
    ids = IdSource()
    claim = ids.next()
    assert lock_text(ids.client)(claim).encode() == LockRecord(claim, ids.client).encode()


def test_the_bytes_of_the_holder_of_a_unique_key_are_pinned() -> None:
    assert KeyHolder("A1").encode() == b"A1"
    assert KeyHolder("A1", 5).encode() == b"A1 5"


@given(ids, st.none() | moments)
def test_the_holder_of_a_unique_key_is_read_back(message: str, end: int | None) -> None:
    holder = KeyHolder(message, end)
    assert KeyHolder.decode(holder.encode()) == holder


@pytest.mark.parametrize("end", [b"", b"-5", b"x", b"1.5", "²".encode(), b"9" * 5000])
def test_the_holder_of_a_unique_key_with_an_unreadable_end_never_expires(end: bytes) -> None:
    assert KeyHolder.decode(b"A1 " + end) == KeyHolder("A1")


@given(ids | texts.filter(bool), ids | texts, st.none() | moments)
def test_a_lock_is_read_back(claim: str, owner: str, end: int | None) -> None:
    lock = LockRecord(claim, owner, end)
    assert LockRecord.decode(lock.encode()) == lock


def test_a_lock_of_a_newer_version_is_read() -> None:
    assert LockRecord.decode(b'{"claim":"A1","owner":"B2","mode":["x"]}') == LockRecord("A1", "B2")


@pytest.mark.parametrize(
    "data",
    [
        *HOSTILE_JSON,
        b"192.168.0.1",
        b"{}",
        b'{"claim":"","owner":"B2"}',
        b'{"claim":"A1"}',
        b'{"claim":1,"owner":"B2"}',
        b'{"claim":"A1","owner":"B2","end":-1}',
        b'{"claim":"A1","owner":"B2","end":true}',
        b'{"claim":"A1","owner":"B2","end":1e400}',
    ],
)
def test_a_lock_of_another_program_is_foreign_and_still_holds(data: bytes) -> None:
    assert LockRecord.decode(data) == FOREIGN


@given(st.binary(max_size=80) | json_objects("claim", "owner", "end"))
def test_any_bytes_of_a_lock_are_read_without_an_error(data: bytes) -> None:
    lock = LockRecord.decode(data)
    assert lock == FOREIGN or lock.claim


def test_the_bytes_of_attempts_are_pinned() -> None:
    assert AttemptRecord(1).encode() == b'{"attempts":1}'
    full = AttemptRecord(3, "A1", "größe", 1_795_000_000_000)
    assert full.encode() == '{"attempts":3,"claim":"A1","error":"größe","due":1795000000000}'.encode()
    assert AttemptRecord(3, retries=5).encode() == b'{"attempts":3,"retries":5}'


@given(
    st.integers(0, 2**31 - 1),
    ids | texts,
    st.none() | texts,
    st.none() | moments,
    st.integers(0, 2**31 - 1),
    unknown_fields,
)
def test_attempts_are_read_back(
    attempts: int, claim: str, error: str | None, due: int | None, retries: int, unknown: dict[str, JsonValue]
) -> None:
    record = AttemptRecord(attempts, claim, error, due, retries, unknown)
    assert AttemptRecord.decode(record.encode()) == record


def test_attempts_of_a_newer_version_keep_their_fields() -> None:
    record = AttemptRecord.decode(b'{"host":"h1","attempts":2}')
    assert record == AttemptRecord(2, unknown={"host": "h1"})
    assert AttemptRecord.decode(record.encode()) == record


def test_attempts_are_read_back_even_if_a_newer_version_left_no_room() -> None:
    crowded = AttemptRecord.decode(b'{"attempts":2,"x":"' + b"y" * (65_536 - 21) + b'"}')
    again = AttemptRecord(3, error="\x01" * 4096, unknown=crowded.unknown)
    assert AttemptRecord.decode(again.encode()) == AttemptRecord(3, error="\x01" * 4096)


@given(st.text(st.characters(), max_size=20), st.integers(0, 3000))
def test_any_error_text_can_be_stored(text: str, times: int) -> None:
    record = AttemptRecord(1, error=text * times)
    assert record.error is not None
    assert len(record.error.encode()) <= 4096
    assert AttemptRecord.decode(record.encode()) == record


def test_an_error_text_is_cut_between_two_characters() -> None:
    assert AttemptRecord(1, error="a" + "😀" * 2000).error == "a" + "😀" * 1023
    assert AttemptRecord(1, error="x" * 4096).error == "x" * 4096


@pytest.mark.parametrize(
    "data",
    [
        *HOSTILE_JSON,
        b"{}",
        b'{"attempts":null}',
        b'{"attempts":-1}',
        b'{"attempts":1.0}',
        b'{"attempts":true}',
        b'{"attempts":"1"}',
        b'{"attempts":2147483648}',
        b'{"attempts":1,"claim":1}',
        b'{"attempts":1,"error":[]}',
        b'{"attempts":1,"due":-1}',
    ],
)
def test_an_invalid_attempts_record_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedError, match="record of attempts"):
        AttemptRecord.decode(data)


@given(st.binary(max_size=80) | json_objects("attempts", "claim", "error", "due"))
def test_hostile_bytes_are_either_read_or_refused(data: bytes) -> None:
    try:
        record = AttemptRecord.decode(data)
    except MalformedError:
        return
    assert AttemptRecord.decode(record.encode()) == record
