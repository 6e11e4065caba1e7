"""A row is stored as the JSON that Spark's own ``to_json`` makes of it, with the documented exceptions."""

from __future__ import annotations

import json
import math
import random
import struct
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions
from pyspark.sql.types import FloatType, StructField, StructType

from aiozkqueue.spark.rows import RowEncoder
from tests.spark.test_batch import drained, state, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

#: Columns whose JSON is the same, by name.
SAME = {
    "byte": "cast(-128 as tinyint)",
    "short": "cast(32767 as smallint)",
    "int": "-2147483648",
    "long": "9223372036854775807",
    "boolean": "true",
    "string": "'é\"'",
    "binary": "X'00FFab'",
    "null": "null",
    "float": "cast(0.1 as float)",
    "largest_float": "cast(3.4028235e38 as float)",
    "smallest_float": "cast(1.4e-45 as float)",
    "normal_float": "cast(1.17549435e-38 as float)",
    "float_exponent": "cast(1e10 as float)",
    "float_integer": "cast(16777216 as float)",
    "negative_zero": "cast('-0.0' as float)",
    "double": "0.1d",
    "double_exponent": "1e22d",
    "small_double": "1e-5d",
    "largest_double": "1.7976931348623157e308d",
    "smallest_double": "4.9e-324d",
    "inexact_double": "9007199254740993d",
    "date": "date'2026-01-02'",
    "date_before_1582": "date'1500-02-28'",
    "date_without_julian_days": "date'1582-10-10'",
    "first_date": "date'0001-01-01'",
    "map": "map('a', float(0.1), 'b', null)",
    "array": "array(float(0.1), null)",
    "struct": "named_struct('f', float(0.1), 'n', null, 's', cast(null as struct<a:int>))",
    "empty_array": "array()",
}
#: Columns that are stored differently, as the documentation states, with the stored value.
DIFFERENT = {
    "decimal": ("cast(1.50 as decimal(10,2))", "1.50"),
    "small_decimal": ("cast('-0.000000001' as decimal(38,18))", "-0.000000001000000000"),
    "timestamp": ("timestamp'2026-01-02 03:04:05.123456-05:00'", "2026-01-02T08:04:05.123456+00:00"),
    "timestamp_before_1582": ("timestamp'1500-02-28 00:00:00Z'", "1500-02-28T00:00:00+00:00"),
    "timestamp_ntz": ("timestamp_ntz'2026-01-02 03:04:05'", "2026-01-02T03:04:05"),
    "timestamp_ntz_before_1582": ("timestamp_ntz'1500-02-28 00:00:00.5'", "1500-02-28T00:00:00.500000"),
}
#: Columns that are refused before any task runs.
REFUSED = {
    "interval day to second": "interval '1 02:03:04.5' day to second",
    "interval year to month": "interval '1-2' year to month",
    "map<int,string>": "map(1, 'a')",
    "map<date,int>": "map(date'2026-01-02', 1)",
    "variant": "parse_json('{\"a\": 1.10}')",
    "time(6)": "time'01:02:03.5'",
}


def test_a_row_is_stored_as_the_json_of_spark_or_as_documented(spark: SparkSession, options: dict[str, str]) -> None:
    frame = spark.sql("select " + ", ".join(f"{value} as {name}" for name, value in SAME.items()))
    whole = functions.to_json(functions.struct("*"), {"ignoreNullFields": "false"})
    expected: dict[str, Any] = json.loads(frame.select(whole.alias("json")).collect()[0].json)
    other = spark.sql("select " + ", ".join(f"{value} as {name}" for name, (value, _) in DIFFERENT.items()))
    write(frame.join(other), options)
    (body,) = drained(options)
    stored: dict[str, Any] = json.loads(body)
    assert {name: stored.pop(name) for name in DIFFERENT} == {name: value for name, (_, value) in DIFFERENT.items()}
    assert stored == expected
    assert math.copysign(1, stored["negative_zero"]) == -1


def test_a_row_that_json_cannot_contain_is_refused_with_the_remedy(
    spark: SparkSession, options: dict[str, str]
) -> None:
    for kind, value in REFUSED.items():
        with pytest.raises(PySparkException) as error:
            write(spark.sql(f"select {value} as v"), options)
        assert f"column 'v': {kind} cannot be stored as JSON" in str(error.value)
        assert "to_json(struct('*'))" in str(error.value)
    for value in ("float('NaN')", "double('-Infinity')", "array(float('Infinity'))", "date'+10000-01-01'"):
        with pytest.raises(PySparkException, match="PayloadError"):
            write(spark.sql(f"select {value} as v"), options)
    assert state(options) == (0, 0)
    every = ", ".join(f"{value} as v{number}" for number, value in enumerate(REFUSED.values()))
    write(spark.sql(f"select {every}").select(functions.to_json(functions.struct("*")).alias("body")), options)
    assert len(json.loads(drained(options)[0])) == len(REFUSED)


def test_a_float_is_stored_with_the_fewest_digits_that_identify_it() -> None:
    chosen = random.Random(1)
    some = [struct.unpack("<f", struct.pack("<I", chosen.getrandbits(32)))[0] for _ in range(2000)]
    numbers = [number for number in some if math.isfinite(number)]
    column = pa.array(numbers, pa.float32())
    encoder = RowEncoder(StructType([StructField("v", FloatType())]))
    rows = encoder.rows(pa.RecordBatch.from_arrays([column], ["v"]))
    for number, row in zip(numbers, rows, strict=True):
        found = json.loads(row.body)["v"]
        assert struct.pack("<f", found) == struct.pack("<f", number)
        digits = len(Decimal(repr(found)).normalize().as_tuple().digits)
        assert digits <= 9
        if digits > 2:
            assert struct.pack("<f", float(f"{number:.{digits - 2}e}")) != struct.pack("<f", number)
