"""The samples of the charts: stored in ZooKeeper, the same for all servers, and kept when a server restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aiozkqueue.http.core.charts import EVERY, Charts, Point
from aiozkqueue.http.dashboard.readings.series import GAP, MOST, lines, thinned
from aiozkqueue.layout.samples import SLOTS, SPAN
from aiozkqueue.sampling import Sampler
from aiozkqueue.session.internals import core_of
from tests.integration.queue.conftest import eventually

if TYPE_CHECKING:
    import aiozkqueue as zq
    from tests.http.conftest import Starter
    from tests.observer import Observer

pytestmark = pytest.mark.timeout(180)


class Sampled:
    """The sampler and the charts of a server, with a time that the test sets."""

    def __init__(self, session: zq.QueueSession, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sampler = Sampler(session)
        self.charts = Charts(core_of(session), self.sampler)
        self._patch = monkeypatch

    async def at(self, moment: int) -> None:
        """Take a sample at this time, and store it if it is due."""
        self.sampler._kept = float("-inf")
        with self._patch.context() as patch:
            await self.sampler.sample_all(0.0)
            patch.setattr(Sampler, "sampled_at", float(moment))
            await self.charts.keep()


BEGIN = 1_767_225_600


async def test_a_new_server_shows_the_samples_of_the_last_day(
    session: zq.QueueSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = session.queue("orders")
    await orders.put_many([b"1", b"2"])
    old = Sampled(session, monkeypatch)
    await old.at(BEGIN)
    await orders.put(b"3")
    await old.at(BEGIN + EVERY)
    await old.at(BEGIN + SPAN)
    fresh = Sampled(session, monkeypatch)
    await fresh.charts.load()
    points = fresh.charts.points("orders", BEGIN)
    assert points == old.charts.points("orders", BEGIN)
    assert [(point.at, point.size, point.put) for point in points] == [
        (BEGIN, 2, 2),
        (BEGIN + EVERY, 3, 3),
        (BEGIN + SPAN, 3, 3),
    ]
    assert fresh.charts.points("orders", BEGIN + 1) == points[1:]
    assert fresh.charts.points("none", BEGIN) == []


async def test_servers_store_one_sample_for_all(session: zq.QueueSession, monkeypatch: pytest.MonkeyPatch) -> None:
    await session.queue("orders").put(b"1")
    servers = [Sampled(session, monkeypatch) for _ in range(3)]
    for number in range(4):
        for late, server in enumerate(servers):
            await server.at(BEGIN + number * EVERY + late * 5)
    await servers[2].at(BEGIN + 4 * EVERY + 20)
    fresh = Sampled(session, monkeypatch)
    await fresh.charts.load()
    assert [point.at for point in fresh.charts.points("orders", BEGIN)] == [
        BEGIN,
        BEGIN + EVERY,
        BEGIN + 2 * EVERY,
        BEGIN + 3 * EVERY,
        BEGIN + 4 * EVERY + 20,
    ]


async def test_the_samples_of_a_day_are_overwritten_by_those_of_the_next(
    session: zq.QueueSession, server_view: Observer, queue_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.queue("orders").put(b"1")
    server = Sampled(session, monkeypatch)
    for number in range(SLOTS + 3):
        await server.at(BEGIN + number * SPAN)
    assert len(await server_view.children(f"{queue_root}/.samples")) == SLOTS
    assert len(server.charts.points("orders", 0)) == SLOTS
    fresh = Sampled(session, monkeypatch)
    await fresh.charts.load()
    assert fresh.charts.points("orders", 0)[0].at == BEGIN + 3 * SPAN


async def test_samples_that_do_not_decode_are_overwritten(
    session: zq.QueueSession, server_view: Observer, queue_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.queue("orders").put(b"1")
    server = Sampled(session, monkeypatch)
    await server.at(BEGIN)
    (slot,) = await server_view.children(f"{queue_root}/.samples")
    await server_view.set(f"{queue_root}/.samples/{slot}", b"garbage")
    await Sampled(session, monkeypatch).at(BEGIN + EVERY)
    fresh = Sampled(session, monkeypatch)
    await fresh.charts.load()
    assert [point.at for point in fresh.charts.points("orders", BEGIN)] == [BEGIN + EVERY]


async def test_a_server_shows_what_another_has_stored(start: Starter, session: zq.QueueSession) -> None:
    await session.queue("orders").put_many([b"1"] * 7)
    first = await start()

    async def stored(service: Any) -> bool:
        await service.http.post("/sign-in", data={"key": service.key})
        answer = await service.get("/queues/orders/points?range=24h")
        assert answer.headers["content-type"] == "application/json"
        return len(answer.json()["at"]) >= 2

    await eventually(lambda: stored(first))
    second = await start()
    await eventually(lambda: stored(second))


def test_lines_are_interrupted_where_no_samples_were_taken() -> None:
    def point(at: float, put: int) -> Point:
        return Point(at, put, 5, 4, 1, 0)

    found = lines([point(0, 0), point(30, 60), point(60 + GAP, 60)], point(90 + GAP, 90))
    assert found["at"] == [0, 30, 31, 60 + GAP, 90 + GAP]
    assert found["put"] == [None, 2.0, None, None, 1.0]
    assert found["waiting"] == [4, 4, None, 4, 4]


def test_a_day_of_samples_is_thinned_for_a_chart() -> None:
    points = [Point(float(at), at, 0, 0, 0, 0) for at in range(0, 24 * 3600, EVERY)]
    assert MOST // 2 < len(thinned(points, MOST)) <= MOST
