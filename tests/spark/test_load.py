"""Files that are loaded into a queue, and the errors for files that cannot be loaded."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions

import aiozkqueue as zq
from aiozkqueue.spark.transfer import Kind, load, unload
from tests.spark.test_batch import drained

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)


def messages(options: Mapping[str, str]) -> dict[bytes, zq.Message[bytes]]:
    """Return the messages by their payloads."""

    async def look() -> dict[bytes, zq.Message[bytes]]:
        async with zq.connect(options["hosts"], root=options["root"]) as session:
            return {message.body: message for message in await session.queue(options["queue"]).peek(1000)}

    return asyncio.run(look())


def written(path: Path, *lines: str) -> str:
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


def test_lines_of_json_become_payloads_unchanged(spark: SparkSession, options: dict[str, str], tmp_path: Path) -> None:
    lines = ['{"b": 2, "a":  "é", "A": 1, "a": "é"}', ' {"c": null} ', ""]
    with gzip.open(tmp_path / "more.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write('{"packed": true}\n')
    files = [written(tmp_path / "orders.jsonl", *lines), str(tmp_path / "more.jsonl.gz")]
    assert load(spark, files, options) == 3
    assert set(drained(options)) == {lines[0].encode(), lines[1].encode(), b'{"packed": true}'}


def test_columns_next_to_the_payload_set_its_put_options(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    line = {"body": "urgent", "priority": -3, "headers": {"tenant": "a"}, "key": "k", "delay": 3600}
    assert load(spark, [written(tmp_path / "a.jsonl", json.dumps(line), '{"body": "plain"}')], options) == 2
    head = "body,priority,headers,at"
    row = 'from csv,5,"{""tenant"": ""b""}",2100-01-01T00:00:00Z'
    assert load(spark, [written(tmp_path / "b.csv", head, row)], options) == 1
    found = messages(options)
    urgent, csv = found[b"urgent"], found[b"from csv"]
    assert (urgent.headers, urgent.key, urgent.due is not None) == ({"tenant": "a"}, "k", True)
    assert (csv.headers, csv.due is not None and csv.due.year) == ({"tenant": "b"}, 2100)
    assert found[b"plain"].due is None


def test_a_column_may_have_any_name(spark: SparkSession, options: dict[str, str], tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", "body,row`s.id", "a,1", "b,2")
    assert load(spark, [file], {**options, "idColumn": "row`s.id"}) == 2
    assert sorted(drained(options)) == [b"a", b"b"]


def test_rows_without_a_payload_are_json_objects(spark: SparkSession, options: dict[str, str], tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", "id,zip", "1,01234")
    load(spark, [file], options)
    load(spark, [file], options, infer=True)
    spark.range(1).select(functions.lit(1.5).alias("x")).write.parquet(str(tmp_path / "p"))
    load(spark, [str(tmp_path / "p")], options)
    payloads = [json.loads(body) for body in drained(options)]
    assert sorted(payloads, key=str) == sorted(
        [{"id": "1", "zip": "01234"}, {"id": 1, "zip": 1234}, {"x": 1.5}], key=str
    )


def test_files_with_other_columns_are_loaded_as_they_are_or_refused(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    first, second = written(tmp_path / "a.csv", "id,name", "1,ann"), written(tmp_path / "b.csv", "name,id", "bob,2")
    with pytest.raises(zq.InvalidOptionError, match=r"a CSV file has the header 'name, id': all files need the same"):
        load(spark, [first, second], options)
    with pytest.raises(zq.InvalidOptionError, match=r"has the header 'id, id'.*a different name for each column"):
        load(spark, [written(tmp_path / "c.csv", "id,id", "1,2")], options)
    for name, columns in (("p", "1 id"), ("q", "2 id, 'k' key, 'x' extra"), ("r", "'3' id")):
        spark.sql(f"select {columns}").write.parquet(str(tmp_path / name))
    load(spark, [str(tmp_path / "p"), str(tmp_path / "q")], options)
    assert {tuple(json.loads(body).items()) for body in drained(options)} == {
        (("id", 2), ("key", "k"), ("extra", "x")),
        (("id", 1), ("key", None), ("extra", None)),
    }
    with pytest.raises(zq.InvalidOptionError, match="a column has different types in these files"):
        load(spark, [str(tmp_path / "p"), str(tmp_path / "r")], options)


def test_loading_an_unload_restores_every_put_option(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    async def put() -> None:
        async with zq.connect(options["hosts"], root=options["root"]) as session:
            await session.queue("orders").put(
                b"\x00\xff", priority=-3, headers={"tenant": "a"}, key="k", tags={"color": "red"}
            )

    asyncio.run(put())
    assert unload(spark, str(tmp_path / "orders"), options).messages == 1
    assert load(spark, [str(tmp_path / "orders")], {**options, "writeId": "back"}) == 1
    assert load(spark, [str(tmp_path / "orders")], {**options, "writeId": "back"}) == 1
    (back,) = messages(options).values()
    assert (back.body, back.headers, back.key) == (b"\x00\xff", {"tenant": "a"}, "k")
    (row,) = spark.read.format("aiozkqueue").options(**options).load().collect()
    assert (row.tags, row.priority) == ({"color": "red"}, -3)
    assert drained(options) == [b"\x00\xff"]


def test_an_unload_decodes_payloads_and_keeps_undecodable_ones(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    async def put() -> None:
        async with zq.connect(options["hosts"], root=options["root"]) as session:
            await session.queue("orders").put_many([b'{"id": 1}', b'{"id": "one"}'])

    asyncio.run(put())
    folder = str(tmp_path / "orders")
    for schema, content, match in (
        ("id integral", "items", "give columns as in"),
        ("int", "items", "give columns as in"),
        ("_id int", "items", "'_id' must be string"),
        ("id int", "history", "only the messages"),
    ):
        with pytest.raises(zq.InvalidOptionError, match=match):
            unload(spark, folder, {**options, "content": content}, schema=schema)
    assert not (tmp_path / "orders").exists()  # without even the name of a run
    with pytest.raises(zq.PayloadError, match="does not decode"):
        unload(spark, folder, {**options, "mode": "FAILFAST"}, schema="id int")
    done = unload(spark, folder, options, schema="id int")
    assert (done.messages, done.resumed) == (2, True)
    rows = spark.read.parquet(folder).collect()
    assert {(row.id, row._corrupt_record, bool(row._id)) for row in rows} == {
        (1, None, True),
        (None, '{"id": "one"}', True),
    }
    other = tmp_path / "other"
    other.mkdir()
    written(other / "notes.txt", "mine")
    with pytest.raises(zq.InvalidOptionError, match=r"contains other files \(notes.txt\)"):
        unload(spark, str(other), options)


def test_a_value_of_csv_may_have_line_breaks(spark: SparkSession, options: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(b'id,note\r\n1,"a\n2,b"\r\n3,"c ""d""\r\n"\r\n')
    assert load(spark, [str(file)], options) == 2
    assert {row["id"]: row["note"] for row in map(json.loads, drained(options))} == {"1": "a\n2,b", "3": 'c "d"\n'}


def test_a_csv_file_in_another_encoding_than_utf_8_is_refused(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    for encoding in ("latin-1", "utf-16"):
        file = tmp_path / f"{encoding}.csv"
        file.write_bytes("id,name\n1,caf\xe9\n".encode(encoding))
        with pytest.raises(zq.PayloadError, match=rf"{encoding}.csv: a line is not UTF-8: convert the file first"):
            load(spark, [str(file)], options)
    assert (
        load(spark, [written(tmp_path / "a.csv", "id,name", "1,caf\N{LATIN SMALL LETTER E WITH ACUTE}")], options) == 1
    )
    assert json.loads(*drained(options)) == {"id": "1", "name": "caf\xe9"}


@pytest.mark.slow
def test_a_load_refuses_bad_rows_with_a_clear_error(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    def refused(kind: type[Exception], match: str, name: str, *lines: str, **more: Any) -> None:
        with pytest.raises(kind, match=match):
            load(spark, [written(tmp_path / name, *lines)], options, **more)

    refused(
        zq.PayloadError, r"bad.jsonl: the line '\{\"id\": 1' is not a JSON object", "bad.jsonl", '{"a": 1}', '{"id": 1'
    )
    for line in ('{"a": 1} x', '{"a": 1}}', '{"a": 1}]', '{"a": 1} {"a": 2}', '{"a": 1}, {"a": 2}', '{"a": 1}, "a": 2'):
        refused(zq.PayloadError, "is not a JSON object", "bad.jsonl", line)
    (tmp_path / "latin.jsonl").write_bytes(b'{"a": "\xe9"}')
    with pytest.raises(zq.PayloadError, match="is not a JSON object"):
        load(spark, [str(tmp_path / "latin.jsonl")], options)
    file = written(tmp_path / "one.csv", "body", "x")
    with pytest.raises(zq.InvalidOptionError, match=r"give a list of paths, such as \['.*one.csv'\]"):
        load(spark, file, options)
    with pytest.raises(zq.InvalidOptionError, match="a path is a str, not PosixPath"):
        load(spark, [tmp_path / "one.csv"], options)  # type: ignore[list-item]  # a wrong type
    with pytest.raises(zq.InvalidOptionError, match=r"kind='csv': give a Kind, such as Kind\.CSV"):
        load(spark, [file], options, kind="csv")  # type: ignore[arg-type]  # a wrong value
    scheme = "Spark has no file system for the scheme 'nosuch'"
    with pytest.raises(zq.InvalidOptionError, match=scheme):
        load(spark, ["nosuch://bucket/a.csv"], options)
    with pytest.raises(zq.InvalidOptionError, match=scheme):
        unload(spark, "nosuch://bucket/orders", options)
    with pytest.raises(zq.InvalidOptionError, match="name a file"):
        load(spark, [], options)
    refused(zq.PayloadError, r"Malformed records .* \[1,null\]", "ragged.csv", "a,b", "1")
    refused(zq.InvalidOptionError, "column 'colour': with `body`", "a.csv", "body,colour", "x,red")
    refused(zq.PayloadError, "soon", "b.csv", "body,delay", "x,soon")
    refused(zq.MessageTooLargeError, "orders", "c.jsonl", json.dumps({"x": "y" * 2_000_000}))
    refused(zq.PayloadError, "'body' is null", "d.jsonl", '{"body": "x"}', '{"key": "k"}')
    refused(zq.PayloadError, "cannot be read", "e.parquet", "no Parquet")
    with pytest.raises(FileNotFoundError, match=r"no such file: .*nowhere"):
        load(spark, [str(tmp_path / "nowhere*.csv")], options)
    with pytest.raises(zq.InvalidOptionError, match="csv and json files"):
        load(spark, ["a.csv", "b.jsonl"], options)
    assert load(spark, [written(tmp_path / "lines.txt", '{"n": 1}')], options, kind=Kind.JSON) == 1
    assert drained(options) == [b'{"n": 1}']
