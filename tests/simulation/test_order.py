"""The order with puts, takes, rollbacks and retries of several clients, in random histories on a simulated ensemble."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aiozkqueue as zq
from aiozkqueue.testing.simulator import run_virtual, simulated

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

pytestmark = pytest.mark.timeout(300)

histories = settings(max_examples=60, deadline=None)

#: Maximum virtual seconds of a history.
LIMIT = 600.0
#: Seconds until a consumer knows a more urgent message of another client.
NOTICED = 0.1

#: A delay in seconds that is longer than all other actions.
LONG = 100.0

SOON = zq.AtLeastOnce(backoff=zq.Fixed(0.05))

#: The ends of taken messages: committed, released at once or with a delay, or failed by a handler.
fates = st.lists(st.sampled_from(["commit", "back", "later", "failed"]), min_size=1, max_size=12)


def played(main: Callable[[], Coroutine[None, None, None]]) -> None:
    run_virtual(main, limit=LIMIT)


class Groups:
    """The remaining messages of each group and their holders. It refuses a message that is out of order."""

    def __init__(self) -> None:
        self.left = defaultdict[str, list[int]](list)
        self.held = dict[str, object]()

    def shown(self, messages: list[zq.Message[bytes]], holder: object) -> None:
        by_group = defaultdict[str, list[int]](list)
        for message in messages:
            group, number = message.body.decode().split()
            by_group[group].append(int(number))
        for group, numbers in by_group.items():
            assert self.held.setdefault(group, holder) is holder, f"{group} is held twice"
            assert numbers == self.left[group][: len(numbers)]

    def given_back(self, holder: object) -> None:
        self.held = {group: held_by for group, held_by in self.held.items() if held_by is not holder}

    def consumed(self, messages: list[zq.Message[bytes]]) -> None:
        for message in messages:
            group, number = message.body.decode().split()
            self.left[group].remove(int(number))

    @property
    def empty(self) -> bool:
        return not any(self.left.values())


@histories
@given(
    puts=st.lists(st.sampled_from("abc"), min_size=1, max_size=14),
    consumers=st.lists(st.tuples(fates, st.integers(1, 3)), min_size=1, max_size=4),
    shards=st.integers(1, 3),
    ordered=st.booleans(),
)
def test_a_group_is_delivered_one_message_at_a_time_in_the_order_of_its_puts(
    *, puts: list[str], consumers: list[tuple[list[str], int]], shards: int, ordered: bool
) -> None:
    async def main() -> None:
        groups = Groups()
        async with simulated(servers=1) as cluster, cluster.connect() as producer, asyncio.TaskGroup() as tasks:
            queue = producer.queue("jobs")
            config = (
                zq.QueueConfig(policy=SOON, ordered=True) if ordered else zq.QueueConfig(policy=SOON, shards=shards)
            )
            await queue.configure(config)

            async def put() -> None:
                for number, choice in enumerate(puts):
                    group = "all" if ordered else choice
                    groups.left[group].append(number)
                    options: zq.PutOptions = {} if ordered else {"group": group}
                    await queue.put(f"{group} {number}".encode(), **options)
                groups.left["last"] = []

            async def consume(name: str, planned: list[str], limit: int) -> None:
                async with cluster.connect(name=name) as session:
                    mine, number = session.queue("jobs"), 0
                    while "last" not in groups.left or not groups.empty:
                        fate = planned[number] if number < len(planned) else "commit"
                        number += await take(session, mine, fate, limit)

            async def take(session: zq.QueueSession, mine: zq.Queue[bytes], fate: str, limit: int) -> int:
                async with session.transaction(autocommit=False) as tx:
                    messages = await tx.take_many(mine, limit, timeout=0.5)
                    groups.shown(messages, tx)
                    await asyncio.sleep(0.01)
                    if fate == "commit":
                        groups.consumed(messages)
                    groups.given_back(tx)
                    if fate == "commit":
                        await tx.commit()
                    else:
                        await tx.rollback(delay={"back": 0, "later": 0.1, "failed": None}[fate])
                    return len(messages)

            tasks.create_task(put())
            for number, (planned, limit) in enumerate(consumers):
                tasks.create_task(consume(f"c{number}", planned, limit))

    played(main)


acts = st.lists(
    st.tuples(st.just("put"), st.sampled_from([-128, -1, 0, 1, 127]))
    | st.tuples(st.just("take"), fates.map(lambda f: f[0])),
    min_size=1,
    max_size=30,
)


@histories
@given(acts=acts, by_another=st.booleans())
def test_a_single_consumer_gets_the_oldest_of_the_most_urgent_waiting_messages(
    *, acts: list[tuple[str, int | str]], by_another: bool
) -> None:
    async def main() -> None:
        async with simulated(servers=1) as cluster, cluster.connect() as session, cluster.connect() as other:
            queue = session.queue("jobs")
            await queue.configure(zq.QueueConfig(policy=SOON))
            target = other.queue("jobs") if by_another else queue
            waiting: list[tuple[int, int]] = []
            for number, (what, how) in enumerate(acts):
                if isinstance(how, int):
                    await target.put(b"%d" % number, priority=how)
                    waiting.append((how, number))
                    if by_another:
                        await asyncio.sleep(NOTICED)
                    continue
                async with session.transaction(autocommit=False) as tx:
                    message = await tx.take(queue)
                    taken = None if message is None else int(message.body)
                    assert taken == (min(waiting)[1] if waiting else None), what
                    if message is None:
                        await tx.rollback()
                    elif how == "commit":
                        waiting.remove(min(waiting))
                        await tx.commit()
                    else:
                        await tx.rollback(delay={"back": 0, "later": 0.1, "failed": None}[how])
                        await asyncio.sleep(0.5)  # its retry is due, and the message returns to its place

    played(main)


@histories
@given(
    delays=st.lists(st.integers(0, 40), min_size=1, max_size=12),
    failing=st.sets(st.integers(0, 11)),
    waits=st.lists(st.sampled_from([0, 0.01, 0.3]), min_size=12, max_size=12),
)
def test_a_single_consumer_gets_scheduled_messages_in_order_and_none_early(
    delays: list[int], failing: set[int], waits: list[float]
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with simulated(servers=1) as cluster, cluster.connect() as session:
            queue = session.queue("jobs")
            await queue.configure(zq.QueueConfig(policy=zq.AtLeastOnce(backoff=zq.Fixed(0))))
            due_at: list[float] = []
            for number, delay in enumerate(delays):
                due_at.append(loop.time() + 1 + delay / 10)
                await queue.put(b"%d" % number, delay=1 + delay / 10)
            left = set(range(len(delays)))
            while left:
                async with session.transaction(autocommit=False) as tx:
                    message = await tx.take(queue, timeout=30)
                    assert message is not None
                    number = int(message.body)
                    assert loop.time() >= due_at[number]
                    # Two messages that are due within a few milliseconds may come in either order.
                    earlier = [candidate for candidate in left if due_at[candidate] < due_at[number] - 0.05]
                    assert not earlier, (number, earlier)
                    if number in failing:
                        failing.discard(number)
                        await tx.rollback()
                        continue
                    await asyncio.sleep(waits[number % len(waits)])
                    left.discard(number)
                    await tx.commit()

    failing = set(failing)
    played(main)


@histories
@given(
    acts=st.lists(
        st.tuples(st.just("put"), st.sampled_from("abc"))
        | st.tuples(st.just("take"), st.integers(1, 3), st.sampled_from(["commit", "back", "rests"])),
        min_size=1,
        max_size=25,
    ),
    by_another=st.booleans(),
)
def test_the_newest_message_of_a_key_is_delivered_once(
    *, acts: list[tuple[str, str] | tuple[str, int, str]], by_another: bool
) -> None:
    async def main() -> None:
        async with simulated(servers=1) as cluster, cluster.connect() as session, cluster.connect() as other:
            queue = session.queue("jobs")
            await queue.configure(zq.QueueConfig(policy=SOON, collapse=True))
            target = other.queue("jobs") if by_another else queue
            waiting, resting = list[tuple[int, str]](), list[tuple[int, str]]()

            def newest() -> dict[str, int]:
                return {key: max(number for number, waiting_key in waiting if waiting_key == key) for _, key in waiting}

            async def take(limit: int, fate: str) -> None:
                due = newest()
                async with session.transaction() as tx:
                    taken = {int(message.body) for message in await tx.take_many(queue, limit)}
                    assert taken <= set(due.values())
                    assert len(taken) <= limit
                    assert bool(taken) == bool(due)
                    left = [(number, key) for number, key in waiting if due[key] not in taken]
                    back = [(number, key) for key, number in due.items() if number in taken]
                    waiting[:] = left + (back if fate == "back" else [])
                    resting.extend(back if fate == "rests" else [])
                    if fate == "commit":
                        await tx.commit()
                    else:
                        await tx.rollback(delay=0 if fate == "back" else LONG)

            for number, act in enumerate(acts):
                if len(act) == 2:
                    await target.put(b"%d" % number, key=act[1])
                    waiting.append((number, act[1]))
                else:
                    await take(act[1], act[2])
            await asyncio.sleep(2 * LONG)
            waiting += resting
            last = list[int]()
            while len(last) < len(newest()):
                async with session.transaction() as tx:
                    message = await tx.take(queue, timeout=LONG)
                    assert message is not None
                    last.append(int(message.body))
            assert sorted(last) == sorted(newest().values())
            assert await queue.size() == 0

    played(main)


def test_a_lone_consumer_gets_bundles_and_single_items_in_the_order_of_their_puts() -> None:
    """One search finds more of them in turn than are claimed at the same time."""

    async def main() -> None:
        async with simulated() as cluster, cluster.connect() as session:
            jobs = session.queue("jobs")
            await jobs.configure(zq.QueueConfig(bundle=2))
            for number in range(40):
                await jobs.put_many([b"%d 0" % number, b"%d 1" % number])
                await jobs.put(b"%d 2" % number, headers={"alone": "yes"})
            taken: list[bytes] = []
            while len(taken) < 120:
                async with session.transaction() as tx:
                    taken += [message.body for message in await tx.take_many(jobs, 7, timeout=5)]
            assert taken == [b"%d %d" % (number, each) for number in range(40) for each in range(3)]

    played(main)


@pytest.mark.parametrize("size", [1, 60_000], ids=["one request", "several requests"])
def test_messages_that_are_released_together_keep_their_order(size: int) -> None:
    async def main() -> None:
        async with simulated() as cluster, cluster.connect() as session:
            jobs = session.queue("jobs")
            await jobs.configure(zq.QueueConfig(bundle=1))
            bodies = [b"%d" % number * size for number in range(9)]
            for body in bodies:
                await jobs.put(body)
            for _ in range(3):
                async with session.transaction(autocommit=False) as tx:
                    taken = [message.body for message in await tx.take_many(jobs, 9, timeout=5)]
                    await tx.rollback(delay=0)
                assert taken == bodies

    played(main)
