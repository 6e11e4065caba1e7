"""ZooKeeper's sequence counters end at 2147483647 without wrapping: a lane moves to its next generation in time."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError

import aiozkqueue as zq
from aiozkqueue.layout import IdSource
from aiozkqueue.queue.commit.group_commit import FULL_GROUP, SLOTS
from aiozkqueue.queue.commit.multi import RESULTS_EVERY
from aiozkqueue.session.internals import state_of
from aiozkqueue.testing import EmbeddedZooKeeper, ServerOptions, ServerUnavailableError
from tests.integration.queue.conftest import eventually
from tests.observer import Observer, observer
from tests.snapshots import set_counters

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

ROOT = "/worn"
LAST = 2**31 - 1
HALF = 2**30

#: The commit slots of a client whose name is known in advance.
WORN_SLOTS = [f"{ROOT}/.clients/000000000000/slot-{number}" for number in range(SLOTS)]

#: The counters of the plain lanes, by queue.
COUNTERS = {
    "raw": LAST,
    "half": HALF - 5,
    "moving": HALF - 5,
    "crowded": HALF - 5,
    "last": LAST,
    "plain": LAST,
    "retired": HALF,
    "of-curator": LAST,
    "widest": HALF - 5,
}


@pytest.fixture(scope="module")
def worn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose counters are near their end in some lanes."""
    folder = tmp_path_factory.mktemp("worn")
    # Without digests, because the stored ones do not match the edited znodes.
    options = ServerOptions(fsync=False, jvm_options=["-Dzookeeper.digest.enabled=false"])
    server = EmbeddedZooKeeper(options, data_dir=folder)
    try:
        server.start()
    except ServerUnavailableError as error:
        pytest.skip(str(error))
    try:
        client = KazooClient(server.hosts)
        client.start(60)
        for queue in COUNTERS:
            client.create(f"{ROOT}/{queue}/items", makepath=True)
        client.create(f"{ROOT}/plain/items/item-0000000007", b"0")  # an item of another program
        for slot in WORN_SLOTS:
            client.create(slot, makepath=True)
        client.stop()
        client.close()
        server.node.restart()  # writes a snapshot of these znodes
        server.node.stop()
        counters = {f"{ROOT}/{queue}/items": at for queue, at in COUNTERS.items()}
        set_counters(folder / "data" / "version-2", counters, dict.fromkeys(WORN_SLOTS, LAST - 2))
        server.node.start()
        yield server.hosts
    finally:
        server.stop()


@pytest.fixture
async def session(worn: str) -> AsyncIterator[zq.QueueSession]:
    async with zq.connect(worn, root=ROOT, session_timeout=20) as session:
        yield session


@pytest.fixture
async def other(worn: str) -> AsyncIterator[zq.QueueSession]:
    async with zq.connect(worn, root=ROOT, session_timeout=20) as session:
        yield session


@pytest.fixture
async def view(worn: str) -> AsyncIterator[Observer]:
    async with observer(worn) as view:
        yield view


async def generations(view: Observer, queue: str) -> list[int] | None:
    """The oldest and the newest generation that the stored configuration names."""
    data = await view.get(f"{ROOT}/{queue}")
    span: list[int] | None = json.loads(data or b"{}").get("generations", {}).get("0")
    return span


async def moved_to(view: Observer, queue: str, span: list[int]) -> None:
    async def moved() -> bool:
        return await generations(view, queue) == span

    await eventually(moved)


async def drained(queue: zq.Queue[bytes]) -> list[bytes]:
    async with queue.consume(until_idle=0) as deliveries:
        return [delivery.value async for delivery in deliveries]


async def test_the_counter_of_zookeeper_stays_at_its_maximum(worn: str) -> None:
    def create_two() -> str:
        client = KazooClient(worn)
        client.start(60)
        try:
            last = str(client.create(f"{ROOT}/raw/items/item-", sequence=True))
            for _ in range(2):
                with pytest.raises(NodeExistsError):
                    client.create(f"{ROOT}/raw/items/item-", sequence=True)
            return last
        finally:
            client.stop()
            client.close()

    assert await asyncio.to_thread(create_two) == f"{ROOT}/raw/items/item-{LAST}"


async def test_a_lane_moves_to_its_next_generation_when_half_of_its_counter_is_used(
    session: zq.QueueSession, other: zq.QueueSession, view: Observer
) -> None:
    half = session.queue("half")
    for number in range(5):
        await half.put(b"old %d" % number)
    assert await generations(view, "half") is None
    await half.put(b"past")  # the first put beyond half of the counter
    await moved_to(view, "half", [0, 1])
    for number in range(5):  # sessions that used the first generation put to the second at once
        await half.put(b"new %d" % number)
        await other.queue("half").put(b"other %d" % number)
    assert len(await view.children(f"{ROOT}/half/items")) == 6
    names = await view.children(f"{ROOT}/half/lanes/s0g1")
    assert [int(name[-10:]) for name in sorted(names, key=lambda name: name[-10:])] == list(range(10))
    assert await half.size() == 16
    expected = [b"old %d" % number for number in range(5)] + [b"past"]
    assert [message.value for message in await half.peek(6)] == expected
    everything = await drained(other.queue("half"))
    assert everything[:6] == expected  # the older generation first
    assert sorted(everything[6:]) == sorted(b"%s %d" % (who, n) for who in (b"new", b"other") for n in range(5))


async def test_a_lane_changes_its_generation_while_several_sessions_put_and_take(
    session: zq.QueueSession, other: zq.QueueSession, view: Observer
) -> None:
    everything = [b"%03d" % number for number in range(200)]
    taken: list[bytes] = []
    done = asyncio.Event()

    async def note(delivery: zq.Delivery[bytes]) -> None:
        taken.append(delivery.value)
        if len(taken) >= len(everything):
            done.set()

    async def produce(producer: zq.QueueSession, part: list[bytes]) -> None:
        for start in range(0, len(part), 4):
            await asyncio.gather(*(producer.queue("moving").put(body) for body in part[start : start + 4]))

    async with (
        session.listener(session.queue("moving"), note, concurrency=4),
        other.listener(other.queue("moving"), note, concurrency=4),
        asyncio.timeout(60),
    ):
        await asyncio.gather(produce(session, everything[:100]), produce(other, everything[100:]))
        await done.wait()
    assert Counter(taken) == Counter(everything)
    await moved_to(view, "moving", [0, 1])


async def test_commits_of_many_puts_advance_the_generation_although_some_replies_are_not_read(
    session: zq.QueueSession, view: Observer
) -> None:
    crowded = session.queue("crowded")
    for _ in range(3 * RESULTS_EVERY):
        await asyncio.gather(*(crowded.put(b"") for _ in range(FULL_GROUP)))
    await moved_to(view, "crowded", [0, 1])
    assert await crowded.size() == 3 * RESULTS_EVERY * FULL_GROUP


async def test_a_put_succeeds_when_the_counter_is_at_its_end(session: zq.QueueSession, view: Observer) -> None:
    last = session.queue("last")
    ids = await asyncio.gather(*(last.put(b"%d" % number) for number in range(8)))
    await moved_to(view, "last", [0, 1])
    ids.append(await last.put(b"8"))
    async with session.transaction() as tx:
        tx.put("elsewhere", b"-")
        ids.append(tx.put(last, b"9"))
    assert Counter(message.id for message in await last.peek(20)) == Counter(ids)
    assert len(await view.children(f"{ROOT}/last/lanes/s0g1")) >= 2
    assert sorted(await drained(last)) == [b"%d" % number for number in range(10)]


async def test_a_create_that_the_counter_refuses_is_repeated_in_the_next_generation(
    session: zq.QueueSession, view: Observer
) -> None:
    plain = session.queue("plain")
    async with session.transaction() as tx:
        message = await tx.take(plain)
        assert message is not None
        tx.reject(message, "no")
    await view.create(f"{ROOT}/plain/items/item-{LAST}", b"the last")
    # The name of another program's item consists of the number only, so at the counter's end the name is taken.
    assert await plain.dead_letters.redrive() == 1
    assert await plain.dead_letters.size() == 0
    assert await generations(view, "plain") == [0, 1]
    assert await view.children(f"{ROOT}/plain/lanes/s0g1") == ["item-0000000000"]
    assert await drained(plain) == [b"the last", b"0"]


async def test_the_error_for_an_exhausted_counter_of_a_curator_queue_says_what_to_do(session: zq.QueueSession) -> None:
    path = f"{ROOT}/of-curator/items"
    queue = session.curator_queue(path)
    await queue.put(b"the last")
    with pytest.raises(zq.NotCommittedError, match=f"sequence counter of {path} has reached its last number, {LAST}"):
        await queue.put(b"one too many")
    assert [message.body for message in await queue.peek()] == [b"the last"]


async def test_a_drained_generation_is_not_listed_after_the_next_change_of_generation(
    session: zq.QueueSession, other: zq.QueueSession, view: Observer
) -> None:
    retired = session.queue("retired")
    await retired.put(b"old")
    await moved_to(view, "retired", [0, 1])
    await retired.put(b"new")
    state = session._runtime.queue_state("retired")
    await state.next_generation(f"{ROOT}/retired/lanes/s0g1/item-x")  # as at the end of the second counter
    assert await generations(view, "retired") == [0, 2]  # the first generation still has messages
    assert sorted(await drained(retired)) == [b"new", b"old"]
    put = (await retired.stats()).put
    await state.next_generation(f"{ROOT}/retired/lanes/s0g2/item-x")
    assert await generations(view, "retired") == [2, 3]
    assert (await retired.stats()).put == put
    await retired.configuration()  # reads the configuration again
    assert state_of(retired).config.lanes == ("lanes/s0g2", "lanes/s0g3")
    await other.queue("retired").put(b"newest")
    assert await drained(session.queue("retired")) == [b"newest"]


async def test_a_queue_with_the_maximum_number_of_lanes_moves_one_of_them_to_its_next_generation(
    session: zq.QueueSession, other: zq.QueueSession, view: Observer
) -> None:
    widest = session.queue("widest")
    await widest.put(b"old")
    await view.set(f"{ROOT}/widest", json.dumps({"width": 1024, "priorities": {"1": {}, "2": {}, "3": {}}}).encode())
    for _ in range(5):
        await widest.put(b"old")
    await moved_to(view, "widest", [0, 1])
    await other.queue("widest").put(b"new")
    assert await view.children(f"{ROOT}/widest/lanes") == ["s0g1"]
    with pytest.raises(zq.InvalidOptionError, match="priority=4 would make 5121 lanes, more than 4096"):
        await widest.put(b"refused", priority=4)
    assert await drained(other.queue("widest")) == [b"old"] * 6 + [b"new"]


async def test_a_queue_drops_empty_lanes_for_the_next_generation_and_names_the_others(
    session: zq.QueueSession, other: zq.QueueSession, view: Observer
) -> None:
    base = f"{ROOT}/spent"
    spent = session.queue("spent")
    await spent.put(b"first")
    older = {str(shard): [0, 1] for shard in range(1024)}
    await view.set(base, json.dumps({"shards": 1024, "priorities": {"1": {}, "2": {}, "3": older}}).encode())
    state = other._runtime.queue_state("spent")
    for shard in range(1024):
        await view.create(f"{base}/lanes/p131s{shard}g0/item-i{shard:024d}-0000000000", b"0")
    with pytest.raises(zq.QueueFullError, match=r"consume the messages in its 1024 older lanes \(lanes/p131s0g0, "):
        await state.next_generation(f"{base}/lanes/p130s7g0/item-x")
    for shard in range(500):
        await view.delete(f"{base}/lanes/p131s{shard}g0")  # with its messages
    await state.next_generation(f"{base}/lanes/p130s7g0/item-x")
    stored = json.loads(await view.get(base))["priorities"]
    assert stored["2"] == {"7": [0, 1]}
    assert [stored["3"][shard] for shard in ("0", "499", "500")] == [[1, 1], [1, 1], [0, 1]]
    await other.queue("spent").put_many([b"1", b"2"], priority=2)
    assert await spent.size() == 1 + 524 + 2


async def test_the_error_for_a_shard_without_empty_generations_says_which_to_consume(
    session: zq.QueueSession, view: Observer
) -> None:
    deep = session.queue("deep")
    await deep.put(b"0")
    state = session._runtime.queue_state("deep")
    for generation in range(15):
        lane = "items" if generation == 0 else f"lanes/s0g{generation}"
        await state.next_generation(f"{ROOT}/deep/{lane}/item-x")
        await deep.put(b"%d" % (generation + 1))
    with pytest.raises(zq.QueueFullError, match=r"messages in 16 lanes, .*consume those in the older ones \(items, "):
        await state.next_generation(f"{ROOT}/deep/lanes/s0g15/item-x")
    assert len(await drained(deep)) == 16
    await state.next_generation(f"{ROOT}/deep/lanes/s0g15/item-x")
    assert await generations(view, "deep") == [15, 16]


async def test_a_commit_slot_accepts_commits_after_two_billion_writes(
    worn: str, view: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy session exhausts the 32 bits of a version within months; the server continues with negative versions."""
    monkeypatch.setattr("aiozkqueue.session.core.IdSource", lambda: IdSource(bytes))
    bodies = [b"%d" % number for number in range(8)]
    async with zq.connect(worn, root=ROOT, session_timeout=20) as session:
        busy = session.queue("busy")
        for body in bodies:
            await busy.put(body)
        versions = [await view.version(slot) for slot in WORN_SLOTS]
        assert min(versions) < 0 < max(versions)
        assert await drained(busy) == bodies
