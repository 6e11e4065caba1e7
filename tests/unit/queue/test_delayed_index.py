"""The index of scheduled items, with watch events that arrive during a listing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from aiozkqueue.layout import HOUR, QueuePaths, StoredConfig, later_of
from aiozkqueue.queue.candidates.delay import CHECKED, LEAD, DelayedIndex
from aiozkqueue.runtime.clock import Clock
from aiozkqueue.zookeeper import Node, Stat

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozkqueue.zookeeper import Collector, Operation

NOW = 500_000 * HOUR
EMPTY = Stat(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


class Folders:
    """Hours on a server. ``meanwhile`` runs after the server has answered, and before the answer is read."""

    def __init__(self, *hours: int) -> None:
        self.hours = {later_of(hour * HOUR): hour for hour in hours}
        self.meanwhile: Callable[[str], None] = lambda _: None

    async def children(self, path: str, **_: object) -> list[str]:
        names = [folder.rpartition("/")[2] for folder in self.hours] if path.endswith("/later") else []
        self.meanwhile(path)
        return names

    async def children_into(self, _: str, make: Callable[[], Collector], **__: object) -> Collector:
        return make()

    async def exists(self, path: str, **_: object) -> Stat | None:
        is_known = path.removeprefix("/zms/q/") in self.hours
        self.meanwhile(path)
        return EMPTY if is_known else None

    async def read_many(self, paths: list[str], **_: object) -> list[Node | None]:
        present = [path.removeprefix("/zms/q/") in {"later", *self.hours} for path in paths]
        self.meanwhile(paths[0])
        return [Node(b"", EMPTY) if exists else None for exists in present]

    async def multi(self, operations: list[Operation], **_: object) -> None:
        for operation in operations:
            self.hours.pop(operation.path.removeprefix("/zms/q/"), None)
        self.meanwhile(operations[0].path)


def later_on(folders: Folders) -> DelayedIndex:
    state: Any = SimpleNamespace(paths=QueuePaths("/zms", "q"), config=StoredConfig())
    return DelayedIndex(folders, state, Clock())  # type: ignore[arg-type]  # the part of a client that it uses


async def test_an_hour_reported_during_a_listing_is_kept() -> None:
    folders, far = Folders(), NOW // HOUR + 5
    later = later_on(folders)

    def put(path: str) -> None:
        if path.endswith("/later"):
            later.add_reported(f"{later_of(far * HOUR)}", NOW)
            later.add_reported(f"{later_of(far * HOUR)}/item-t{far * HOUR:013d}-ia-0000000001", NOW)

    folders.meanwhile = put
    await later.refresh(NOW, 1, watched=True, asked=False)
    assert later.next == far * HOUR - LEAD


async def test_an_hour_that_is_gone_is_dropped_by_the_next_listing() -> None:
    folders = Folders(NOW // HOUR + 5)
    later = later_on(folders)
    await later.refresh(NOW, 1, watched=False, asked=False)
    assert later.next is not None
    folders.hours.clear()
    later.must_refresh = True
    await later.refresh(NOW, 1, watched=False, asked=False)
    assert later.next is None


async def test_hours_that_another_client_removes_meanwhile_are_skipped() -> None:
    over = [NOW // HOUR - ago for ago in (4, 3, 2)]
    folders = Folders(*over)
    later = later_on(folders)

    def another(path: str) -> None:
        if path.endswith(f"/{over[0]}"):
            for hour in over[1:]:
                folders.hours.pop(later_of(hour * HOUR), None)
                later.forget(later_of(hour * HOUR))

    folders.meanwhile = another
    await later.refresh(NOW, 1, watched=True, asked=False)
    assert later.next is None
    assert folders.hours == {}


@pytest.mark.slow
async def test_a_large_number_of_past_hours_is_removed_a_few_at_a_time() -> None:
    """A consumer can take its messages in between. The removal of 30,000 hours takes a minute."""
    folders = Folders(*range(400_000, 430_000))
    requests: list[str] = []
    folders.meanwhile = requests.append
    later = later_on(folders)
    looks = 0
    while later.next is not None or not looks:
        before = len(requests)
        await later.refresh(NOW, 1, watched=True, asked=False)
        looks += 1
        assert len(requests) - before <= 2 * CHECKED + 1
    assert not folders.hours
    assert looks < 200


async def test_an_explicit_listing_reads_every_hour() -> None:
    folders = Folders(*range(400_000, 401_000))
    later = later_on(folders)
    await later.refresh(NOW, 1, watched=False, asked=True)
    assert not folders.hours
    assert later.next is None


async def test_an_hour_that_was_listed_by_a_clock_ahead_is_listed_again_when_it_is_near() -> None:
    hour = NOW // HOUR + 5
    later = later_on(Folders(hour))
    await later.refresh(hour * HOUR, 1, watched=False, asked=False)
    later.add_reported(f"{later_of(hour * HOUR)}/item-t{hour * HOUR:013d}-ia-0000000001", NOW)
    assert later.next == hour * HOUR - LEAD


async def test_an_hour_that_was_listed_by_a_clock_ahead_is_listed_again_after_missed_events() -> None:
    hour = NOW // HOUR + 5
    later = later_on(Folders(hour))
    await later.refresh(hour * HOUR, 1, watched=False, asked=False)
    later.must_refresh = True
    await later.refresh(NOW, 1, watched=True, asked=False)
    assert later.next == hour * HOUR - LEAD
