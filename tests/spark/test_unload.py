"""A queue is unloaded into Parquet files, each message once, wherever the driver is killed."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from pyarrow.dataset import dataset

import aiozkqueue as zq
from aiozkqueue.spark.transfer import unload
from tests.spark.attached import MOVE, killed_after, killed_at
from tests.spark.test_batch import put
from tests.spark.test_stream import left

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

STEPS = ["write", "publish", MOVE, "acknowledge", "end", "forget"]


def written(folder: Path) -> Counter[bytes]:
    """Return the contents of the folder for a reader other than Spark."""
    if not any(folder.glob("*.parquet")):
        return Counter()
    return Counter(dataset(folder).to_table(columns=["body"])["body"].to_pylist())


def waiting(options: Mapping[str, str]) -> set[bytes]:
    """Return the messages in the queue, held or not."""

    async def look() -> set[bytes]:
        async with zq.connect(options["hosts"], root=options["root"]) as session:
            return {message.body for message in await session.queue("orders").peek(1000)}

    return asyncio.run(look())


def work(spark: SparkSession, arguments: Sequence[str], on_step: Callable[[str], object]) -> object:
    """The work of the driver that is killed."""
    folder, options = arguments
    return unload(spark, folder, json.loads(options), on_step=on_step)


@pytest.mark.slow
def test_a_run_killed_before_any_step_and_repeated_loses_and_duplicates_nothing(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    folder, bodies = tmp_path / "orders", set[bytes]()
    for step in STEPS:
        more = {f"{step} {n}".encode() for n in range(5)}
        put(options, *more)
        bodies |= more
        killed_at(spark, __name__, step, str(folder), json.dumps({**options, "maxOffsetsPerTrigger": "8"}))
        seen = written(folder)
        assert max(seen.values(), default=1) == 1, f"doubled when killed before {step!r}"
        assert seen.keys() | waiting(options) == bodies, f"lost when killed before {step!r}"
    put(options, b"last")
    assert unload(spark, str(folder), options).messages == 1
    assert written(folder) == Counter([*bodies, b"last"])
    assert left(options) == (0, 0, 0)


def configured(options: Mapping[str, str], config: zq.QueueConfig) -> None:
    """Configure the queue."""

    async def configure() -> None:
        async with zq.connect(options["hosts"], root=options["root"]) as session:
            await session.queue(options["queue"]).configure(config)

    asyncio.run(configure())


def put_with_more(options: Mapping[str, str], bodies: Sequence[bytes]) -> None:
    """Put messages that have, in turn, a lifetime, a key, earlier attempts or another version."""

    async def put_all() -> None:
        async with zq.connect(options["hosts"], root=options["root"]) as session:
            queue = session.queue("orders")
            for number, body in enumerate(bodies):
                match number % 4:
                    case 0:
                        await queue.put(body, ttl=3600)
                    case 1:
                        await queue.put(b"draft", key=body.decode())
                        await queue.update(body, key=body.decode())
                    case 2:
                        await queue.put(body)
                        async with session.transaction() as tx:
                            taken = await tx.take(queue)
                            assert taken is not None
                            await tx.rollback()
                    case _:
                        await queue.put(body)

    asyncio.run(put_all())


CONFIGURATIONS = {
    "plain": zq.QueueConfig(),
    "lifetimes and versions": zq.QueueConfig(policy=zq.AtLeastOnce(backoff=zq.Fixed(0))),
    "attempts and a history": zq.QueueConfig(policy=zq.ConsumeTimes(5, backoff=zq.Fixed(0)), history=zq.History()),
}


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_an_unload_killed_after_any_acknowledgement_write_has_each_message_once(
    spark: SparkSession, options: dict[str, str], tmp_path: Path, config: zq.QueueConfig
) -> None:
    writes = 0
    while True:
        writes += 1
        own_options = {**options, "root": f"{options['root']}/{writes}"}
        folder = tmp_path / str(writes)
        configured(own_options, config)
        bodies = [b"%d" % number for number in range(12)]
        put(own_options, *bodies) if config == zq.QueueConfig() else put_with_more(own_options, bodies)
        arguments = str(folder), json.dumps(own_options)
        killed = killed_after(spark, "tests.spark.small_pages", "acknowledge", writes, *arguments)
        if killed:
            assert unload(spark, str(folder), own_options).resumed
        assert written(folder) == Counter(bodies), f"killed after write {writes}"
        assert left(own_options) == (0, 0, 0)
        if not killed:
            break
    assert writes > 5


def test_an_unload_of_a_paused_queue_moves_nothing_and_says_so(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    put(options, b"a", b"b")
    configured(options, zq.QueueConfig(paused=True))
    done = unload(spark, str(tmp_path / "out"), options)
    assert (done.messages, done.paused, written(tmp_path / "out")) == (0, True, Counter())
    assert left(options) == (2, 0, 0)
    configured(options, zq.QueueConfig(paused=False))
    done = unload(spark, str(tmp_path / "out"), options)
    assert (done.messages, done.paused, written(tmp_path / "out")) == (2, False, Counter([b"a", b"b"]))
    assert left(options) == (0, 0, 0)


def test_a_folder_can_be_used_after_an_unload_of_an_ordered_queue_was_refused(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    ordered = {**options, "queue": "ordered"}
    configured(ordered, zq.QueueConfig(ordered=True))
    put(ordered, b"1", b"2")
    put(options, b"a", b"b")
    with pytest.raises(zq.InvalidOptionError, match="'ordered' keeps an order"):
        unload(spark, str(tmp_path / "out"), ordered)
    assert unload(spark, str(tmp_path / "out"), options).messages == 2
    assert written(tmp_path / "out") == Counter([b"a", b"b"])
    assert left(ordered) == (2, 0, 0)
