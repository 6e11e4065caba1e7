"""History is written to Parquet files, each record once, wherever the driver is killed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pytest
from pyarrow.dataset import dataset

import aiozkqueue as zq
from aiozkqueue.errors import ConfigConflictError
from aiozkqueue.layout import End
from aiozkqueue.session.internals import core_of
from aiozkqueue.spark.audit import Moved, Percentiles, Reason, move, report
from aiozkqueue.spark.audit.records import Reading, tasks_of
from aiozkqueue.spark.options import parse_servers
from aiozkqueue.zookeeper import Delete
from tests.histories import record, store
from tests.spark.attached import MOVE, killed_at

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

STEPS = ["write", "commit", "publish", MOVE, "remove", "end"]
QUEUES = ["orders", "invoices"]


@pytest.fixture
def servers(zookeeper: str, queue_root: str) -> dict[str, str]:
    return {"hosts": zookeeper, "root": queue_root}


class Ends(NamedTuple):
    """Ends messages, and reads the records of them."""

    servers: dict[str, str]

    def make(self, count: int) -> set[str]:
        """Put this many messages into each queue, and finish or reject them."""

        async def ended(queue: zq.Queue[bytes]) -> set[str]:
            await queue.configure(zq.QueueConfig(history=zq.History()))
            ids = await queue.put_many([b"%d" % n for n in range(count)])
            async with queue.consume(until_idle=0) as deliveries:
                async for delivery in deliveries:
                    if delivery.body == b"0":
                        await delivery.reject("nothing to pay")
            return set(ids)

        async def all_ended() -> set[str]:
            async with zq.connect(self.servers["hosts"], root=self.servers["root"]) as session:
                found = await asyncio.gather(*(ended(session.queue(name)) for name in QUEUES))
                return set().union(*found)

        return asyncio.run(all_ended())

    def kept(self) -> list[str]:
        """Return the ids of the records in the histories."""

        async def read() -> list[str]:
            async with zq.connect(self.servers["hosts"], root=self.servers["root"]) as session:
                return [ended.id for name in QUEUES async for ended in session.queue(name).history()]

        return asyncio.run(read())

    def remove_some(self, written: Collection[str]) -> None:
        """Remove half of the written records, as a job does that is killed while it removes them."""

        async def remove() -> None:
            async with zq.connect(self.servers["hosts"], root=self.servers["root"]) as session:
                zookeeper = core_of(session).zookeeper
                history = core_of(session).queue_state("orders").paths.history
                hour = max(await zookeeper.children(history))
                names = await zookeeper.children(f"{history}/{hour}")
                gone = [name for name in names if name.partition("-")[2] in written][::2]
                assert gone
                await zookeeper.multi([Delete(f"{history}/{hour}/{name}") for name in gone])

        asyncio.run(remove())

    def pins(self) -> list[str]:
        async def read() -> list[str]:
            async with zq.connect(self.servers["hosts"], root=self.servers["root"]) as session:
                states = [core_of(session).queue_state(name) for name in QUEUES]
                return [pin for state in states for pin in await core_of(session).zookeeper.children(state.paths.pins)]

        return asyncio.run(read())


def written(folder: Path) -> Counter[str]:
    """Return the contents of the folder for a reader other than Spark."""
    if not any(folder.glob("queue=*")):
        return Counter()
    return Counter(dataset(folder, partitioning="hive").to_table(columns=["id"])["id"].to_pylist())


def work(spark: SparkSession, arguments: Sequence[str], on_step: Callable[[str], object]) -> object:
    """The work of the driver that is killed."""
    folder, servers = arguments
    return move(spark, folder, json.loads(servers), on_step=on_step)


@pytest.mark.slow
def test_a_run_killed_before_any_step_and_repeated_loses_and_duplicates_nothing(
    spark: SparkSession, servers: dict[str, str], tmp_path: Path
) -> None:
    ends, folder, ids = Ends(servers), tmp_path / "audit", set[str]()
    for step in STEPS:
        ids |= ends.make(3)
        killed_at(spark, __name__, step, str(folder), json.dumps(servers))
        seen = written(folder)
        assert max(seen.values(), default=1) == 1, f"doubled when killed before {step!r}"
        assert seen.keys() | set(ends.kept()) == ids, f"lost when killed before {step!r}"
        if step == "remove":
            ends.remove_some(seen)
    assert move(spark, str(folder), servers) == Moved(records=18, finished=True)
    assert written(folder) == Counter(ids)
    assert ends.kept() == ends.pins() == []


class CutOffError(Exception):
    """The error that interrupts an audit."""


@pytest.mark.slow
def test_removing_its_pins_abandons_an_audit_whose_folder_is_lost(
    spark: SparkSession, servers: dict[str, str], tmp_path: Path
) -> None:
    def cut_off(step: str) -> None:
        if step == "publish":
            raise CutOffError

    async def unpin() -> None:
        async with zq.connect(servers["hosts"], root=servers["root"]) as session:
            assert [await session.queue(name).admin.unpin("audit") for name in QUEUES] == [True, True]

    ends = Ends(servers)
    ids = ends.make(2)
    with pytest.raises(CutOffError):
        move(spark, str(tmp_path / "lost"), servers, on_step=cut_off)
    with pytest.raises(ConfigConflictError, match="aiozkqueue pins remove audit"):
        move(spark, str(tmp_path / "other"), servers)
    asyncio.run(unpin())
    assert move(spark, str(tmp_path / "other"), servers) == Moved(records=4, finished=False)
    assert written(tmp_path / "other") == Counter(ids)
    assert ends.kept() == ends.pins() == []


@pytest.mark.slow
def test_the_later_of_two_audits_wins_and_the_earlier_publishes_nothing(
    spark: SparkSession, servers: dict[str, str], tmp_path: Path
) -> None:
    def overtaken(step: str) -> None:
        if step == "commit":
            assert move(spark, str(tmp_path / "later"), servers).records == 4

    ends = Ends(servers)
    ids = ends.make(2)
    with pytest.raises(zq.ClaimLostError, match="another audit"):
        move(spark, str(tmp_path / "earlier"), servers, on_step=overtaken)
    assert written(tmp_path / "later") == Counter(ids)
    assert written(tmp_path / "earlier") == Counter()
    assert ends.kept() == ends.pins() == []


@pytest.fixture
def known(servers: dict[str, str]) -> dict[str, str]:
    """Two queues with known figures. One name could be mistaken for a number or for markup."""
    orders = [record(n, waited=10 * n, handled=1000, attempts=1) for n in range(1, 101)]
    orders += [
        record(800 + n, waited=5, handled=5, outcome=End.DEAD, attempts=3, reason="<b>no such customer</b>")
        for n in range(3)
    ]
    store(servers, {"orders": orders, "2026": [record(1, waited=1, handled=0, outcome=End.EXPIRED)]})
    return servers


def test_an_audit_passes_large_payloads_on_in_batches_of_a_few_megabytes(servers: dict[str, str]) -> None:
    store(servers, {"orders": [record(n, waited=1, handled=0, payload=b"x" * 50_000) for n in range(250)]})

    async def tasks() -> list[str]:
        async with zq.connect(servers["hosts"], root=servers["root"]) as session:
            return await tasks_of(session, ["orders"])

    (task,) = asyncio.run(tasks())
    numbers = pa.RecordBatch.from_pydict({"id": [0]})
    sizes = [batch.num_rows for batch in Reading(parse_servers(servers), [task])(iter([numbers]))]
    assert sizes == [100, 100, 50]


@pytest.mark.slow
def test_the_command_without_spark_reports_the_same_figures(
    spark: SparkSession, servers: dict[str, str], tmp_path: Path
) -> None:
    chance = random.Random(11)
    outcomes = [End.FINISHED] * 6 + [End.DEAD, End.EXPIRED]
    records = [
        record(
            number,
            waited=chance.randrange(600_000),
            handled=chance.randrange(20_000),
            outcome=(outcome := chance.choice(outcomes)),
            attempts=0 if outcome is End.EXPIRED else chance.randrange(1, 5),
            reason=f"reason {chance.randrange(4)}" if outcome is End.DEAD else "",
        )
        for number in range(2000)
    ]
    store(servers, {"orders": records})
    command = [sys.executable, "-m", "aiozkqueue", "report", "orders", "--json"]
    environment = os.environ | {"AIOZKQUEUE_HOSTS": servers["hosts"], "AIOZKQUEUE_ROOT": servers["root"]}
    found = json.loads(subprocess.run(command, env=environment, capture_output=True, check=True, timeout=120).stdout)

    move(spark, str(tmp_path / "audit"), servers)
    figures = report(spark, str(tmp_path / "audit"))
    orders = figures.queues["orders"]
    assert (found["ended"], found["retried"], found["retries"]) == (orders.ended, orders.retried, orders.retries)
    assert (found["first"], found["last"]) == (orders.first.isoformat(), orders.last.isoformat())
    assert (found["outcomes"]["finished"], found["outcomes"]["dead-lettered"]) == (orders.finished, orders.dead)
    assert found["outcomes"]["expired"] == orders.other
    assert found["per_second"] == pytest.approx(orders.per_second, abs=0.001)
    assert found["dead_letters"] == [
        {"reason": reason.reason, "messages": reason.messages} for reason in figures.reasons
    ]
    for time, theirs in (("waiting", orders.waiting), ("handling", orders.handling)):
        assert theirs is not None
        for share in ("p50", "p95", "p99"):
            assert found[time][share] == pytest.approx(getattr(theirs, share), rel=0.001), (time, share)
    assert found["span"] == figures.span.total_seconds()
    assert [(span["begin"], span["finished"], span["dead"], span["other"]) for span in found["spans"]] == [
        (span.begin.isoformat(), span.finished, span.dead, span.other) for span in figures.spans
    ]


def test_the_report_shows_the_figures_of_the_records(
    spark: SparkSession, known: dict[str, str], tmp_path: Path
) -> None:
    assert move(spark, str(tmp_path / "audit"), known) == Moved(records=104, finished=False)
    figures = report(spark, str(tmp_path / "audit"))
    orders = figures.queues["orders"]
    assert list(figures.queues) == ["orders", "2026"]
    assert (orders.ended, orders.finished, orders.dead, orders.other) == (103, 100, 3, 0)
    assert (orders.retried, orders.retries) == (3, 6)
    assert orders.waiting == Percentiles(p50=0.49, p95=0.95, p99=0.99)
    assert orders.handling == Percentiles(p50=1.0, p95=1.0, p99=1.0)
    assert (figures.queues["2026"].other, figures.queues["2026"].waiting) == (1, None)
    assert figures.reasons == [Reason(queue="orders", reason="<b>no such customer</b>", messages=3)]
    assert figures.total is not None
    assert sum(span.finished + span.dead + span.other for span in figures.spans) == figures.total.ended == 104
    assert orders.per_second == pytest.approx(103 / (801.01 - 1.01), rel=1e-3)
    days = {path.parent.name for path in (tmp_path / "audit").glob("queue=orders/day=*/*.parquet")}
    assert days == {"day=2026-03-01", "day=2026-03-02"}
    later = report(spark, str(tmp_path / "audit"), since=datetime(2026, 3, 2, tzinfo=UTC), queues=["orders"])
    assert later.total is not None
    assert (later.total.finished, later.total.dead) == (0, 3)
