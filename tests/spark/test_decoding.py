"""JSON of every type has the same value here and with Spark's own ``from_json``."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from pyspark.sql import Row, functions
from pyspark.sql.types import (
    ArrayType,
    DateType,
    DecimalType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

import aiozkqueue as zq
from aiozkqueue.spark.columns import RowLayout, decode_object
from aiozkqueue.spark.decoding import decoder_of
from aiozkqueue.spark.options import parse_options, zone_of
from aiozkqueue.spark.rows import RowEncoder
from aiozkqueue.spark.transfer import unload
from tests.spark.test_batch import put

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType

pytestmark = pytest.mark.timeout(300)

NESTED = ArrayType(StructType([StructField("m", MapType(StringType(), TimestampType()))]))
ZONE = "America/New_York"
DECIMALS = [
    *("12.345", "12.335", "0.125", "-0.125", "0.005", "1e3", "1E-400", "1", '"12.345"', '"abc"', "true", "NaN", "1e40"),
    *("1234567890123456.78", "99999999.995", "99999999.994", "123456789012345678901234567890123456.785"),
    *('"1.5 "', '" 1.5"', "-0.004", "Infinity", '"NaN"', "1e-7", '""'),
]
VALUES = {
    "decimal(10,2)": DECIMALS,
    "decimal(38,2)": DECIMALS,
    "decimal(38,18)": DECIMALS,
    "decimal(5,0)": DECIMALS,
    "double": [
        *("1", "1.5", "0.1", "1e400", "-1e400", "NaN", "Infinity", '"NaN"', '"-INF"', '"1.5"', "true", "1e-400"),
        *("9" * 400, "-" + "9" * 400),
    ],
    "float": ["1e39", "0.1", "NaN", '"Infinity"', "16777217", "9" * 400],
    "tinyint": ["-128", "127", "1.0"],
    "smallint": ["32767", "32768"],
    "int": ["1", "1.0", "1.5", "2147483648", "-2147483648", '"1"', "true", "1e3"],
    "bigint": ["9223372036854775807", "9223372036854775808"],
    "boolean": ["true", "false", '"true"', "1"],
    "string": ['"a"', '""', "null"],
    "binary": ['"aGk="', '"aGk"', '"!!"', '""', "1"],
    "date": ['"2026-01-02"', '"2026-01-02T03:04:05"', '"2026-W01-1"', '"2026-02-30"', '"0001-01-01"', "1"],
    "timestamp": [
        *('"2026-01-02T03:04:05"', '"2026-07-02 03:04:05"', '"2026-01-02"', '"2026-01-02T03:04"', '"x"'),
        *('"2026-01-02T03:04:05Z"', '"2026-01-02T03:04:05.123456789+02:00"', '"20260102T030405Z"'),
        *('"2026-03-08T02:30:00"', '"2026-11-01T01:30:00"'),
        *('"2026-01-02T03:04:05+18:00"', '"2026-01-02T03:04:05-1800"', '"2026-01-02T03:04:05+17:59"'),
        *('"2026-01-02T03:04:05+18:01"', '"2026-01-02T03:04:05-19"', '"2026-01-02T03:04:05+05:60"'),
        *('"2026-01-02T03:04:05-05"', '"2026-01-02T03:04Z"', '"2026-01-02T24:00:00"', '"2026-01-02T03:60:00Z"'),
    ],
    "timestamp_ntz": ['"2026-01-02T03:04:05.5"', '"2026-01-02T03:04:05Z"', '"2026-01-02T03:04:05+02:00"', "1"],
    "array<decimal(5,1)>": ["[1.25,null]", "1", "[]", '["a"]'],
    "map<string,decimal(5,1)>": ['{"a":1.25,"b":null}', "[1]"],
    "struct<a:int,b:decimal(5,1)>": ['{"a":1}', '{"b":2.25,"c":3}', "[1]", "null"],
    "struct<>": ["{}", '{"a":1}', "3", '"a"', "null"],
}


def plain(value: Any) -> Any:
    """Return a value in a form that can be compared."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return dict(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).isoformat()
    if isinstance(value, date) and not isinstance(value, datetime):
        return value.isoformat()
    return value.asDict() if isinstance(value, Row) else value


@pytest.mark.parametrize("kind", VALUES)
def test_a_decoded_value_is_the_one_that_spark_decodes(spark: SparkSession, kind: str) -> None:
    rows = [f'{{"v": {value}}}' for value in VALUES[kind]]
    both = cast("StructType", StructType.fromDDL(f"v {kind}, bad string"))
    zone = {"columnNameOfCorruptRecord": "bad", "timeZone": ZONE}
    numbered = spark.createDataFrame(list(enumerate(rows)), "n int, line string")
    parsed = functions.from_json("line", both, zone)
    value = functions.unix_micros(parsed.v) if kind == "timestamp" else parsed.v
    found = numbered.select("n", value.alias("v"), parsed.bad.alias("bad")).collect()
    decoders = {"v": decoder_of(both["v"].dataType, "v", ZoneInfo(ZONE))}
    for row in found:
        try:
            ours = decode_object(rows[row.n].encode(), decoders)["v"]
        except ValueError:
            assert row.bad is not None, f"{kind}: {rows[row.n]} is {row.v} in Spark, and does not decode here"
            continue
        assert row.bad is None, f"{kind}: {rows[row.n]} is {ours} here, and does not decode in Spark"
        if kind == "timestamp":
            assert isinstance(ours, datetime)
            ours = (ours - datetime(1970, 1, 1, tzinfo=UTC)) // (datetime.resolution)
        if kind == "float" and isinstance(ours, float) and math.isfinite(ours):
            assert ours == pytest.approx(row.v) or math.isinf(row.v)  # Arrow converts the double to a float
            continue
        assert plain(ours) == plain(row.v), f"{kind}: {rows[row.n]}"


@pytest.mark.parametrize("payload", [b'{"v": 1e99999999999999999999}', b'{"v": ' + b"[" * 100_000])
def test_a_payload_that_python_cannot_read_does_not_decode(payload: bytes) -> None:
    with pytest.raises(ValueError, match="out of range, or is nested too deeply"):
        decode_object(payload, {})


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32-be"])
def test_a_payload_in_another_encoding_than_utf_8_does_not_decode(spark: SparkSession, encoding: str) -> None:
    payload = '{"v": "\N{SNOWMAN}"}'.encode(encoding)
    stored = spark.createDataFrame([(bytearray(payload),)], "body binary")
    parsed = functions.from_json(
        stored.body.cast("string"), "v string, bad string", {"columnNameOfCorruptRecord": "bad"}
    )
    assert stored.select(parsed.v.isNull(), parsed.bad.isNotNull()).first() == (True, True)
    with pytest.raises(ValueError, match=r"UTF-8 BOM|utf-8|Expecting"):
        decode_object(payload, {"v": decoder_of(StringType(), "v")})


def test_a_schema_with_only_the_column_of_corrupt_records_finds_them() -> None:
    options = parse_options({"hosts": "nowhere", "queue": "orders"})
    columns = StructType([StructField("_id", StringType()), StructField("_corrupt_record", StringType())])
    layout = RowLayout(columns, options)
    decoded = layout.decode([{"id": "bad", "body": b"{"}, {"id": "list", "body": b"[]"}, {"id": "good", "body": b"{}"}])
    assert decoded.rows == [["bad", "{"], ["list", "[]"], ["good", None]]


@pytest.mark.parametrize("value", ['"1"', "[1]", "1.5"])
def test_the_error_of_a_value_of_another_type_is_a_sentence(value: str) -> None:
    with pytest.raises(ValueError, match=r"^.+ is of the type \w+, not int$"):
        decode_object(f'{{"v": {value}}}'.encode(), {"v": decoder_of(IntegerType(), "v")})


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (StringType(), b'{"v": "\\ud800"}'),
        (StringType(), b'{"v": "a\xed\xa0\x80"}'),
        (MapType(StringType(), IntegerType()), b'{"v": {"\\udfff": 1}}'),
        (ArrayType(StructType([StructField("a", StringType())])), b'{"v": [{"a": "\\ude00\\ud83d"}]}'),
    ],
)
def test_a_text_that_utf_8_cannot_encode_does_not_decode_and_does_not_affect_other_rows(
    kind: DataType, payload: bytes
) -> None:
    options = parse_options({"hosts": "nowhere", "queue": "orders", "mode": "DEADLETTER"})
    layout = RowLayout(StructType([StructField("v", kind)]), options)
    decoded = layout.decode([{"id": "bad", "body": payload}, {"id": "good", "body": b"{}"}])
    assert list(decoded.undecodable) == ["bad"]
    assert "half of a surrogate pair" in decoded.undecodable["bad"]
    assert decoded.undecodable["bad"].isascii()  # the payload is stored
    assert layout.batch(decoded.rows).to_pylist() == [{"v": None}]


@pytest.mark.parametrize(
    ("name", "hours"),
    [
        ("+02:00", 2),
        ("-05:30", -5.5),
        ("GMT+2", 2),
        ("UTC-08:00", -8),
        ("+2", 2),
        ("+18", 18),
        ("-18:00", -18),
        ("Z", 0),
        ("UTC", 0),
        ("Etc/GMT-3", 3),
    ],
)
def test_a_time_zone_is_accepted_in_each_form_of_a_spark_session(name: str, hours: float) -> None:
    assert zone_of(name).utcoffset(datetime(2026, 1, 1)) == timedelta(hours=hours)  # noqa: DTZ001 - the time is in that zone


@pytest.mark.parametrize("name", ["", "+24:00", "+99", "+01:60", "GMT+", "Mars", "../UTC", "+1:0", "+18:30", "GMT-19"])
def test_another_form_of_time_zone_is_refused(name: str) -> None:
    with pytest.raises(zq.InvalidOptionError, match="give the name of a region"):
        zone_of(name)


def encoded(column: pa.Array, kind: DataType) -> list[bytes]:
    """Return the payloads of rows with one column ``v``."""
    encoder = RowEncoder(StructType([StructField("v", kind)]))
    return [row.body for row in encoder.rows(pa.RecordBatch.from_arrays([column], ["v"]))]


def test_a_time_is_written_in_utc_and_read_back_whatever_its_zone_and_year() -> None:
    times = [datetime(1880, 1, 1, 4, 56, 2, tzinfo=UTC), datetime(2026, 7, 1, tzinfo=UTC)]
    payloads = encoded(pa.array(times, pa.timestamp("us", ZONE)), TimestampType())
    assert payloads == [b'{"v": "1880-01-01T04:56:02+00:00"}', b'{"v": "2026-07-01T00:00:00+00:00"}']
    decoders = {"v": decoder_of(TimestampType(), "v")}
    assert [decode_object(payload, decoders)["v"] for payload in payloads] == times


@pytest.mark.parametrize("zone", ["GMT+2", "UTC-03:00", "Z", "PST", "America/New_York", "Asia/Tokyo"])
def test_a_time_is_written_in_each_time_zone_that_a_spark_session_accepts(zone: str) -> None:
    first, last = "0001-01-01T00:00:00+00:00", "9999-12-31T23:59:59.999999+00:00"
    moments = [datetime.fromisoformat(text) for text in (first, last)]
    kind = pa.timestamp("us", zone)
    nested = pa.list_(pa.struct([("m", pa.map_(pa.string(), kind))]))
    types = StructType([StructField("at", TimestampType()), StructField("nested", NESTED)])
    columns = {
        "at": pa.array(moments, pa.timestamp("us", "UTC")).cast(kind),
        "nested": pa.array([[{"m": [("k", moment)]}] for moment in [0, 0]], nested),
    }
    rows = RowEncoder(types).rows(pa.RecordBatch.from_pydict(columns))
    assert [json.loads(row.body)["at"] for row in rows] == [first, last]
    assert json.loads(rows[0].body)["nested"] == [{"m": {"k": "1970-01-01T00:00:00+00:00"}}]
    puts = StructType([StructField("body", StringType()), StructField("at", TimestampType())])
    put_at = RowEncoder(puts).rows(pa.RecordBatch.from_pydict({"body": ["a", "b"], "at": columns["at"]}))
    assert [row.options["at"] for row in put_at] == moments


def test_a_small_decimal_is_written_in_digits() -> None:
    digits = ["0.000000000000000000", "0.000000000100000000", "-1.500000000000000000"]
    column = pa.array(map(Decimal, digits), pa.decimal128(38, 18))
    assert encoded(column, DecimalType(38, 18)) == [f'{{"v": "{number}"}}'.encode() for number in digits]


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([10_000_000], pa.int32()).cast(pa.date32()), DateType()),
        (pa.array([-(10**17)], pa.int64()).cast(pa.timestamp("us", "UTC")), TimestampType()),
        (pa.array([10**18], pa.int64()).cast(pa.timestamp("us")), TimestampNTZType()),
    ],
)
def test_a_year_that_python_does_not_have_is_refused(column: pa.Array, kind: DataType) -> None:
    with pytest.raises(zq.PayloadError, match="not in the years 1 to 9999"):
        encoded(column, kind)


@pytest.mark.parametrize("name", ["body", "v"])
def test_a_text_of_spark_that_is_not_utf_8_is_refused(name: str) -> None:
    column = pa.Array.from_buffers(pa.string(), 1, pa.array([b"a\xff"]).buffers())
    encoder = RowEncoder(StructType([StructField(name, StringType())]))
    with pytest.raises(zq.PayloadError, match="a string in a row is not UTF-8"):
        encoder.rows(pa.RecordBatch.from_arrays([column], [name]))


def test_an_unload_with_a_schema_keeps_each_digit_and_each_payload(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    bodies = [
        b'{"amt": 1234567890123456.78, "more": 1}',
        b'{"amt": 0.125}',
        b'{"at": "2026-01-02T03:04:05"}',
        b'{"amt": 1e40}',
    ]
    put(options, *bodies)
    given = {**options, "timeZone": ZONE}
    with pytest.raises(zq.InvalidOptionError, match="timeZone='Mars'"):
        unload(spark, str(tmp_path / "o"), {**options, "timeZone": "Mars"}, schema="amt int")
    unload(spark, str(tmp_path / "o"), given, schema="amt decimal(38,2), at timestamp")
    frame = spark.read.parquet(str(tmp_path / "o"))
    rows = {
        bytes(row["_body"]): row for row in frame.select("*", functions.unix_seconds("at").alias("second")).collect()
    }
    assert set(rows) == set(bodies)
    assert rows[bodies[0]]["amt"] == Decimal("1234567890123456.78")
    assert rows[bodies[1]]["amt"] == Decimal("0.13")
    assert rows[bodies[2]]["second"] == datetime(2026, 1, 2, 3, 4, 5, tzinfo=ZoneInfo(ZONE)).timestamp()
    assert json.loads(rows[bodies[3]]["_corrupt_record"]) == {"amt": 1e40}
