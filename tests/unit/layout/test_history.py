"""History records are read back as written, their names sort by time, and any bytes are read or refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.layout import (
    LAST_MOMENT,
    MAGIC,
    End,
    History,
    HistoryRecord,
    MalformedError,
    QueueConfig,
    StoredConfig,
    hour_end,
    hour_of,
    parse_hour,
    parse_record,
)

from .hostile import ids, moments

texts = st.text(max_size=200)
records = st.builds(
    HistoryRecord,
    id=ids,
    ended=moments,
    outcome=st.sampled_from(End),
    put=moments,
    claimed=st.none() | moments,
    attempts=st.integers(0, 2**31 - 1),
    client=texts.filter(bool),
    host=texts.filter(bool),
    pid=st.integers(1, 2**22),
    name=texts,
    key=st.none() | texts.filter(bool),
    group=st.none() | texts.filter(bool),
    reason=texts,
)


def name_of(record: HistoryRecord) -> str:
    return record.place.partition("/")[2]


@given(records)
def test_a_history_record_is_read_back(record: HistoryRecord) -> None:
    assert HistoryRecord.decode(name_of(record), record.encode()) == record


@given(records, st.binary(max_size=100) | st.just(MAGIC), st.dictionaries(texts, texts, max_size=3))
def test_a_history_record_with_a_payload_is_read_back(
    record: HistoryRecord, payload: bytes, headers: dict[str, str]
) -> None:
    whole = replace(record, payload=payload, headers=headers)
    assert HistoryRecord.decode(name_of(whole), whole.encode()) == whole


@given(moments, moments)
def test_records_sort_by_the_time_of_the_end(first: int, second: int) -> None:
    record = HistoryRecord(id="A", ended=first, outcome=End.FINISHED, put=0)
    assert (record.place < replace(record, ended=second).place) == (first < second) or max(first, second) >= 10**13


@given(moments)
def test_an_hour_holds_the_moments_from_its_start_to_its_end(moment: int) -> None:
    begin = parse_hour(hour_of(moment))
    assert begin is not None
    assert begin <= moment < hour_end(begin)


def test_the_stored_bytes_of_history_records_are_pinned() -> None:
    ended = round(datetime(2026, 3, 1, 17, 30, tzinfo=UTC).timestamp() * 1000)
    record = HistoryRecord(
        id="A1", ended=ended, outcome=End.DEAD, put=1, claimed=2, attempts=3, client="C", host="h", pid=4, reason="bad"
    )
    assert record.place == "2026-03-01T17/1772386200000-A1"
    assert record.encode() == (
        b'{"outcome":"dead-lettered","put":1,"claimed":2,"attempts":3,"client":"C","host":"h","reason":"bad","pid":4}'
    )
    assert replace(record, name="billing", reason="").encode() == (
        b'{"outcome":"dead-lettered","put":1,"claimed":2,"attempts":3,"client":"C","host":"h","name":"billing","pid":4}'
    )
    assert record.ended_at == datetime(2026, 3, 1, 17, 30, tzinfo=UTC)


@given(st.binary(max_size=300) | st.binary(max_size=300).map(lambda data: MAGIC + data))
def test_any_bytes_are_read_as_a_history_record_or_refused(data: bytes) -> None:
    try:
        HistoryRecord.decode("1772386200000-A1", data)
    except MalformedError:
        return


@pytest.mark.parametrize("field", ["pid", "attempts"])
def test_a_number_that_does_not_fit_a_column_of_spark_is_refused(field: str) -> None:
    stored = '{"outcome":"finished","put":1,"%s":%d}'
    assert getattr(HistoryRecord.decode("1772386200000-A1", (stored % (field, 2**31 - 1)).encode()), field) == 2**31 - 1
    with pytest.raises(MalformedError, match=field):
        HistoryRecord.decode("1772386200000-A1", (stored % (field, 2**31)).encode())


@given(texts)
def test_any_name_is_read_as_a_record_or_an_hour_or_refused(name: str) -> None:
    parsed, hour = parse_record(name), parse_hour(name)
    assert parsed is None or parsed[0] <= LAST_MOMENT
    assert hour is None or hour_of(hour) == name


@pytest.mark.parametrize("name", ["2026-13-01T00", "2026-02-30T00", "2026-01-01T24", ".pins", "", "0000-01-01T00"])
def test_a_name_that_is_not_an_hour_is_not_read_as_one(name: str) -> None:
    assert parse_hour(name) is None


def test_fields_of_newer_versions_are_kept() -> None:
    record = HistoryRecord.decode("1772386200000-A1", b'{"outcome":"finished","put":1,"colour":"red"}')
    assert record.unknown == {"colour": "red"}
    assert HistoryRecord.decode("1772386200000-A1", record.encode()) == record


@pytest.mark.parametrize("history", [None, False, History(), History(lifetime=timedelta(days=1), most=5, payload=True)])
def test_a_configuration_stores_the_history_settings(history: History | None) -> None:
    config = StoredConfig(history=history, clean_every=timedelta(minutes=1))
    assert StoredConfig.decode(config.encode()) == config


def test_history_settings_of_a_newer_version_are_kept() -> None:
    stored = b'{"history":{"kind":"history","lifetime":60.0,"most":5,"colour":"red"}}'
    config = StoredConfig.decode(stored)
    assert config.history == History(lifetime=60, most=5)
    assert b'"colour": "red"' in replace(config, history=History(lifetime=30)).encode()


@pytest.mark.parametrize(
    "stored",
    [
        b'{"history":true}',
        b'{"history":{"lifetime":0,"most":5}}',
        b'{"history":{"lifetime":60,"most":0}}',
        b'{"clean_every":0}',
        b'{"clean_every":"often"}',
    ],
)
def test_an_invalid_stored_history_is_refused(stored: bytes) -> None:
    with pytest.raises(MalformedError):
        StoredConfig.decode(stored)


@pytest.mark.parametrize("seconds", [0, -1, 10**9 + 1, float("nan"), float("inf"), True, "1"])
def test_an_invalid_history_lifetime_or_clean_up_interval_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidOptionError):
        History(lifetime=seconds)
    with pytest.raises(InvalidOptionError):
        QueueConfig(clean_every=seconds)
