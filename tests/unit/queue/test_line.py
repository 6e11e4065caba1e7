"""Those who wait for claims on a queue."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest

from aiozkqueue.queue.claims.line import Line
from aiozkqueue.testing import TestClock

if TYPE_CHECKING:
    from aiozkqueue.queue.claim import Claim
    from aiozkqueue.queue.claims.line import Waiter


@pytest.fixture
async def line() -> Line:
    return Line("jobs", TestClock(), asyncio.Event())


def join(line: Line, limit: int) -> Waiter:
    return line.join(limit, None, None, None)


def bring(line: Line, flight: int, flying: set[int], count: int) -> None:
    """A batch comes to its end."""
    claims = cast("list[Claim]", [object() for _ in range(count)])
    assert line.give(flight, flying, claims, 1, None, None) == []
    line.landed(flight)


async def test_who_nothing_flies_for_is_widened_where_it_stands(line: Line) -> None:
    first, other = join(line, 1), join(line, 1)
    assert line.widen(first, 2, 0)
    assert line.wanted(0) == 4
    bring(line, 1, {1}, 4)
    assert [len(first.future.result()), len(other.future.result())] == [3, 1]


async def test_who_some_of_what_flies_is_for_is_not_widened_since_it_would_be_answered_later(line: Line) -> None:
    first, second = join(line, 2), join(line, 2)
    assert not line.widen(first, 1, promised=1)
    assert not line.widen(second, 1, promised=3)
    assert line.widen(second, 1, promised=2)
    bring(line, 1, {1, 2}, 2)
    assert first.over


async def test_who_has_a_part_or_has_been_answered_is_not_widened(line: Line) -> None:
    first = join(line, 2)
    bring(line, 1, {1, 2}, 1)
    assert not line.widen(first, 1, 0)
    line.landed(2)
    assert first.over
    assert not line.widen(first, 1, 0)
