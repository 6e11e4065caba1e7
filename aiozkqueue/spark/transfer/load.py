"""Puts the rows of files into a queue. Each row becomes a message."""

from __future__ import annotations

import enum
from contextlib import contextmanager
from os import PathLike
from typing import TYPE_CHECKING, Final, cast

from pyspark.errors import AnalysisException
from pyspark.sql import Observation, functions
from pyspark.sql.types import (
    DataType,
    DoubleType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from aiozkqueue.errors import InvalidOptionError, PayloadError
from aiozkqueue.spark.columns import default_schema
from aiozkqueue.spark.failures import SPARK_ERRORS, cause_of, condition_of, unfit_header, unknown_scheme
from aiozkqueue.spark.options import Content, parse_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession


class Kind(enum.Enum):
    """The format of files."""

    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"
    """Lines, each a JSON object."""


_SUFFIXES: Final = {
    ".parquet": Kind.PARQUET,
    ".csv": Kind.CSV,
    ".json": Kind.JSON,
    ".jsonl": Kind.JSON,
    ".ndjson": Kind.JSON,
}
_PACKED: Final = (".gz", ".bz2", ".zst", ".snappy", ".lz4")
#: The types of put options, regardless of the types in a file.
_OPTIONS: Final[dict[str, DataType]] = {
    "key": StringType(),
    "group": StringType(),
    "priority": IntegerType(),
    "headers": MapType(StringType(), StringType()),
    "tags": MapType(StringType(), StringType()),
    "delay": DoubleType(),
    "at": TimestampType(),
    "ttl": DoubleType(),
}
#: Columns of an unload or a batch read that are not put options.
_METADATA: Final = {
    name for content in (Content.ITEMS, Content.DEAD_LETTERS) for name in default_schema(content).fieldNames()
} - {"body", *_OPTIONS}
#: Spark's error classes for files, rows and values that it cannot read.
_UNREADABLE: Final = frozenset({"CAST_INVALID_INPUT", "FAILED_READ_FILE", "MALFORMED_RECORD_IN_PARSING"})
#: A JSON value is valid in both. Any other text is invalid in at least one.
_WRAPPERS: Final = (("[", "]"), ('{"":', "}"))
_SETTINGS: Final = {
    # The division of files does not depend on the number of cores, so that a load can be continued.
    "spark.sql.files.minPartitionNum": "4",
    "spark.sql.files.maxPartitionBytes": "16m",
    # The names of columns and fields are those of the files.
    "spark.sql.caseSensitive": "true",
    "spark.sql.variant.allowDuplicateKeys": "true",
}


def kind_of(path: str) -> Kind:
    """Return the format of a file, determined by its name; Parquet for a folder or an unknown name."""
    name = path.lower().rstrip("/")
    for packed in _PACKED:
        name = name.removesuffix(packed)
    return next((kind for suffix, kind in _SUFFIXES.items() if name.endswith(suffix)), Kind.PARQUET)


def load(
    spark: SparkSession,
    files: Sequence[str],
    options: Mapping[str, str],
    *,
    kind: Kind | None = None,
    infer: bool = False,
) -> int:
    """Put each row of the files into a queue, and return the number of rows.

    A column ``body`` (text or binary) is the payload, and ``key``, ``group``, ``priority``, ``headers``, ``tags``,
    ``delay``, ``at`` and ``ttl`` are its put options. The other columns of an unload are ignored. Without ``body``,
    each row becomes a JSON object of its columns, and a line of JSON is stored unchanged.

    CSV files need the same header. A column that only some Parquet files have is null in the rows of the others.

    If the job succeeds, all rows become visible at once. Otherwise no row becomes visible. A bounded queue therefore
    needs capacity for all rows. With the option ``writeId``, each row is put once, however often the same files are
    loaded with this id. If the driver was killed, the next load continues after the stored rows.

    Args:
        spark: a Spark session.
        files: paths, folders or patterns, all of one format.
        options: the options of ``df.write.format("aiozkqueue")``.
        kind: the format of the files; None: their names determine it.
        infer: detect numbers, booleans and times in CSV; otherwise all values are text.

    Raises:
        InvalidOptionError: an option, a column or the mixture of files is invalid.
        FileNotFoundError: there is no such file.
        PayloadError: a row cannot be read or put.
        MessageTooLargeError, QueueFullError, ConnectionLostError, AccessDeniedError.
    """
    parsed = parse_options(options)
    _require_paths(files)
    if kind is not None and not isinstance(cast("object", kind), Kind):
        msg = f"kind={kind!r}: give a Kind, such as Kind.{Kind.CSV.name}, or leave it out"
        raise InvalidOptionError(msg)
    kinds = {kind_of(path) for path in files} if kind is None else {kind}
    if len(kinds) > 1:
        names = " and ".join(sorted(form.value for form in kinds))
        msg = f"{names} files: load each format separately, or name the format"
        raise InvalidOptionError(msg)
    with _translate_errors(files), _configured(spark):
        frame = _as_messages(_read(spark, list(files), kinds.pop(), infer=infer), parsed.id_column)
        counted = Observation()
        rows = frame.observe(counted, functions.count(functions.lit(1)).alias("rows"))
        rows.write.format("aiozkqueue").mode("append").options(**options).save()
        return int(counted.get["rows"])


def _require_paths(files: Sequence[str]) -> None:
    """Refuse anything but a list of paths. A text would be read as a list of letters. Raises: InvalidOptionError."""
    given: object = files
    if isinstance(given, str | bytes | PathLike):
        msg = f"files={str(files)!r}: give a list of paths, such as [{str(files)!r}]"
        raise InvalidOptionError(msg)
    if not files:
        raise InvalidOptionError("name a file to load")
    for path in files:
        if not isinstance(cast("object", path), str):
            msg = f"files: a path is a str, not {type(path).__name__}: give {str(path)!r}"
            raise InvalidOptionError(msg)


def _read(spark: SparkSession, files: list[str], kind: Kind, *, infer: bool) -> DataFrame:
    match kind:
        case Kind.PARQUET:
            return spark.read.options(mergeSchema=True).parquet(*files)  # otherwise, columns could be dropped
        case Kind.CSV:
            _require_text(spark, files)
            # `enforceSchema` would ignore the header of each file but one, although its columns may have another order.
            # Without `multiLine`, a value with a line break would become two rows.
            reader = spark.read.options(header=True, escape='"', mode="FAILFAST", enforceSchema=False, multiLine=True)
            return reader.option("inferSchema", infer).csv(files)
        case Kind.JSON:
            return _read_lines(spark, files)


def _require_text(spark: SparkSession, files: list[str]) -> None:
    """Refuse CSV that is not UTF-8: Spark would replace the bytes that it cannot read. Raises: PayloadError."""
    lines = spark.read.text(files)
    bad = lines.where(~functions.is_valid_utf8("value")).select("_metadata.file_path").first()
    if bad is not None:
        msg = f"{bad.file_path}: a line is not UTF-8: convert the file first"
        raise PayloadError(msg)


def _read_lines(spark: SparkSession, files: list[str]) -> DataFrame:
    lines = spark.read.text(files).where(functions.trim("value") != "")
    bad = lines.where(~_is_object("value")).select("value", "_metadata.file_path").first()
    if bad is not None:
        msg = f"{bad.file_path}: the line {bad.value[:80]!r} is not a JSON object"
        raise PayloadError(msg)
    if lines.where(functions.array_contains(functions.json_object_keys("value"), "body")).first() is None:
        return lines.select(functions.col("value").alias("body"))
    columns = spark.read.json(files).schema
    typed = StructType([StructField(field.name, _OPTIONS.get(field.name, field.dataType)) for field in columns.fields])
    return spark.read.schema(typed).option("mode", "FAILFAST").json(files)


def _is_object(column: str) -> Column:
    """Whether a text is one JSON object. Spark ignores text after a value, which one of the wrappers makes invalid."""
    wrapped = [functions.concat(functions.lit(begin), column, functions.lit(end)) for begin, end in _WRAPPERS]
    first, second = (functions.try_parse_json(text).isNotNull() for text in wrapped)
    return functions.trim(column).startswith("{") & functions.is_valid_utf8(column) & first & second


def _as_messages(frame: DataFrame, id_column: str | None) -> DataFrame:
    """Select the payload and its put options with their types. Other columns are kept, and the writer refuses them."""
    if "body" not in frame.columns:
        return frame
    kept = [field for field in frame.schema.fields if field.name not in _METADATA or field.name == id_column]
    return frame.select(*(_typed(field.name, field.dataType) for field in kept))


def _typed(name: str, kind: DataType) -> Column:
    quoted = name.replace("`", "``")
    column = functions.col(f"`{quoted}`")
    target = _OPTIONS.get(name, kind)
    if kind == target:
        return column
    if isinstance(target, MapType) and isinstance(kind, StringType):
        return functions.from_json(column, target.simpleString(), {"mode": "FAILFAST"}).alias(name)
    return column.cast(target).alias(name)


@contextmanager
def _configured(spark: SparkSession) -> Iterator[None]:
    """Read files in the same way in every session."""
    before = {key: spark.conf.get(key, None) for key in _SETTINGS}
    for key, value in _SETTINGS.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, earlier in before.items():
            if earlier is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, earlier)


@contextmanager
def _translate_errors(files: Sequence[str]) -> Iterator[None]:
    """Raise Spark's error about the files as an error of this library."""
    try:
        yield
    except SPARK_ERRORS as error:
        if (cause := cause_of(error)) is not None:
            raise cause from error
        condition, line = condition_of(error)
        if condition == "PATH_NOT_FOUND":
            msg = f"there is no such file: {', '.join(files)}"
            raise FileNotFoundError(msg) from error
        if unknown := unknown_scheme(error):
            msg = f"{', '.join(files)}: Spark has no file system for the scheme {unknown!r}; add its package to Spark"
            raise InvalidOptionError(msg) from error
        if condition == "CANNOT_MERGE_SCHEMAS":
            msg = f"{', '.join(files)}: a column has different types in these files; load each kind of file separately"
            raise InvalidOptionError(msg) from error
        if (header := unfit_header(error)) is not None:
            msg = (
                f"{', '.join(files)}: a CSV file has the header {header!r}: all files need the same header, with "
                "a different name for each column"
            )
            raise InvalidOptionError(msg) from error
        if condition in _UNREADABLE:
            msg = f"{', '.join(files)}: a row cannot be read: {line}"
            raise PayloadError(msg) from error
        if isinstance(error, AnalysisException):
            raise InvalidOptionError(line) from error
        raise
