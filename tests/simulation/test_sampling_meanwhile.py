"""Samples of all queues do not replace what is known of a queue that was changed or deleted while they were taken."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.operations.stats import count_scheduled
from aiozkqueue.sampling import Sampler
from aiozkqueue.session.internals import core_of
from tests.simulation.between import Between
from tests.simulation.test_known_configuration import play

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime

pytestmark = pytest.mark.timeout(120)

#: More requests than sampling two queues takes.
REQUESTS = 60


def test_a_deleted_queue_is_not_sampled() -> None:
    """Its znode is kept for a week."""

    async def program(sessions: list[zq.QueueSession]) -> None:
        reader, operator = sessions
        for name in ("deleted", "kept"):
            await operator.queue(name).put(b"x")
        await operator.queue("deleted").admin.delete(force=True)
        sampler = Sampler(reader)
        await sampler.sample_all(0)
        assert list(sampler.latest) == ["kept"]

    play(program, 2)


def test_a_queue_that_a_session_has_used_is_not_sampled_after_its_deletion() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        user, operator = sessions
        for name in ("deleted", "kept"):
            await user.queue(name).put(b"x")
        sampler = Sampler(user, core_of(user).queues_used)
        await sampler.sample_all(0)
        assert list(sampler.latest) == ["deleted", "kept"]
        await operator.queue("deleted").admin.delete(force=True)
        await sampler.sample_all(0)
        assert list(sampler.latest) == ["kept"]
        await operator.queue("deleted").put(b"x")
        await sampler.sample_all(0)
        assert list(sampler.latest) == ["deleted", "kept"]

    play(program, 2)


def test_a_queue_that_is_deleted_meanwhile_is_not_shown() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        reader, operator = sessions
        number = 0
        for number in range(1, REQUESTS):
            for name in ("first", "second"):
                await operator.queue(name).configure(zq.QueueConfig(max_size=5))
            sampler = Sampler(reader)

            async def delete(sampler: Sampler = sampler) -> None:
                for name in ("first", "second"):
                    await operator.queue(name).admin.delete()
                    sampler.forget(name)

            between = Between(reader, number, delete)
            await sampler.sample_all(0)
            if not between.reached:
                break
            assert {**sampler.latest, **sampler.unreadable} == {}, number
        assert number > 10

    play(program, 2)


def test_a_queue_that_is_sampled_again_meanwhile_has_the_later_sample() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        reader, producer = sessions
        jobs, number = producer.queue("jobs"), 0
        await jobs.put(b"0")
        for number in range(1, REQUESTS):
            sampler = Sampler(reader)

            async def put(sampler: Sampler = sampler) -> None:
                await jobs.put(b"x")
                await sampler.sample("jobs")

            between = Between(reader, number, put)
            await sampler.sample_all(0)
            if not between.reached:
                break
            assert sampler.latest["jobs"].size == number + 1, number
        assert number > 10

    play(program, 2)


def test_a_sample_that_began_before_a_change_does_not_replace_the_later_one() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        reader, operator = sessions
        jobs, number = operator.queue("jobs"), 0
        for number in range(1, REQUESTS):
            await jobs.put(b"x")
            sampler = Sampler(reader)

            async def purge(sampler: Sampler = sampler) -> None:
                await jobs.purge()
                await sampler.sample("jobs")

            between = Between(reader, number, purge)
            sample = await sampler.sample("jobs")
            if not between.reached:
                break
            assert sampler.latest["jobs"].size == 0, number
            assert sample is not None
            assert sample.size == 0, number
        assert number > 10

    play(program, 2)


def test_a_sample_that_began_before_a_deletion_does_not_show_the_queue_again() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        reader, operator = sessions
        number = 0
        for number in range(1, REQUESTS):
            await operator.queue("deleted").put(b"x")
            sampler = Sampler(reader)

            async def delete(sampler: Sampler = sampler) -> None:
                await operator.queue("deleted").admin.delete(force=True)
                sampler.forget("deleted")

            between = Between(reader, number, delete)
            await sampler.sample("deleted")
            if not between.reached:
                break
            assert sampler.latest == {}, number
        assert number > 10

    play(program, 2)


def test_a_number_that_took_long_to_list_is_listed_again_after_a_purge(monkeypatch: pytest.MonkeyPatch) -> None:
    async def count_slowly(handle: QueueHandle[Runtime], held: Mapping[str, int]) -> int:
        end = time.monotonic() + 0.1  # real time, which the sampler measures
        while time.monotonic() < end:
            pass
        return await count_scheduled(handle, held)

    async def program(sessions: list[zq.QueueSession]) -> None:
        reader, operator = sessions
        jobs, sampler = operator.queue("jobs"), Sampler(reader)
        await jobs.put_many([b"x"] * 400, delay=90_000)
        for number in (400, 1):
            sample = await sampler.sample("jobs")
            assert sample is not None
            assert (sample.size, sample.scheduled, sample.waiting) == (number, number, 0)
            await jobs.purge()
            await jobs.put(b"x", delay=90_000)

    monkeypatch.setattr("aiozkqueue.sampling.count_scheduled", count_slowly)
    monkeypatch.setattr("aiozkqueue.sampling.EVERY", 0.0)
    play(program, 2)
