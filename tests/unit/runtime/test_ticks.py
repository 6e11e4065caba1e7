"""Periodic checks, and pauses between tries that are refused."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from aiozkqueue.runtime.ticks import Pauses, Ticks
from aiozkqueue.testing import TestClock


async def test_a_planned_check_is_brought_forward_and_never_put_off() -> None:
    clock, checks = TestClock(), list[float]()
    began = clock.monotonic()
    ticks = Ticks(clock, lambda: checks.append(clock.monotonic() - began))
    ticks.begin(5)
    ticks.plan_within(1000)
    ticks.plan_within(1)
    clock.advance(0.5)
    ticks.plan_within(1)
    clock.advance(0.4)
    await asyncio.sleep(0)
    assert not checks
    clock.advance(0.2)
    await asyncio.sleep(0)
    assert len(checks) == 1
    clock.advance(1000)
    await asyncio.sleep(0)
    assert len(checks) == 1
    assert not ticks.planned


@pytest.mark.parametrize("seed", range(20))
def test_pauses_double_up_to_the_longest_and_begin_again_after_a_success(seed: int) -> None:
    clock = TestClock()
    pauses = Pauses[str](clock, Random(seed), first=0.1, longest=5)
    assert "a" not in pauses
    for times, pause in enumerate([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, *[5.0] * 2000], 1):
        refused = clock.monotonic()
        assert pauses.refused("a") == times
        left = pauses.left("a")
        assert 0.75 * pause <= left + clock.monotonic() - refused
        assert left <= pause
        assert not pauses.left("b")
    clock.advance(5)
    assert not pauses.left("a")
    pauses.forget("a")
    assert pauses.refused("a") == 1
