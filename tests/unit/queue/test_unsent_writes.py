"""The order in which writes are sent. Some are blocked until a multi about their chain has ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from aiozkqueue.errors import NotCommittedError
from aiozkqueue.queue.commit.multi import GROUP, GROUP_BYTES, MEMBERS, SHARED_BYTES, Contribution, UnsentWrites
from aiozkqueue.queue.commit.put import Put
from aiozkqueue.queue.commit.register import FixedOperations
from aiozkqueue.queue.commit.write import AtomicWrite
from aiozkqueue.queue.state.bundle_hold import BundledClaim
from aiozkqueue.runtime.deadline import AT_ONCE, FOREVER
from aiozkqueue.zookeeper.wire import MAX_REQUEST

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozkqueue.queue.commit.multi import SharedWrite
    from aiozkqueue.queue.commit.write import Chain
    from aiozkqueue.queue.state.bundle_hold import BundleHold
    from aiozkqueue.queue.state.queue_state import QueueState

JOBS, MAILS = (cast("Chain", name) for name in ("jobs", "mails"))


class Hold:
    """The part of a held bundle that the ends of its messages use."""

    state = SimpleNamespace(snapshot=SimpleNamespace(end_hooks=()))
    generation = 1
    created = claimed_at = 0


#: The bundles whose messages end.
HOLDS: dict[Chain, Hold] = {}


class Changes(FixedOperations):
    """The part of a write that continues chains."""

    def __init__(self, chains: tuple[Chain, ...], weight: int) -> None:
        super().__init__("chains", (), lambda error: NotCommittedError(str(error)))
        self.chains, self.weight = chains, weight


@pytest.fixture
def unsent() -> UnsentWrites:
    return UnsentWrites()


def write(number: int, *chains: Chain, weight: int = 200, alone: bool = False) -> AtomicWrite:
    atomic_write = AtomicWrite("t", Changes(chains, weight))
    atomic_write.number, atomic_write.alone = number, alone
    return atomic_write


def fill(unsent: UnsentWrites, *writes: AtomicWrite) -> None:
    unsent.ready.extend(writes)


def numbers(unsent: UnsentWrites) -> list[int]:
    return [atomic_write.number for atomic_write in unsent.next_batch(MAX_REQUEST)]


def test_a_batch_has_the_first_writes_up_to_a_number(unsent: UnsentWrites) -> None:
    fill(unsent, *(write(number) for number in range(GROUP + 5)))
    assert numbers(unsent) == list(range(GROUP))
    assert numbers(unsent) == list(range(GROUP, GROUP + 5))
    assert numbers(unsent) == []


def test_a_batch_ends_before_the_write_that_exceeds_its_bytes(unsent: UnsentWrites) -> None:
    fill(unsent, write(0), write(1, weight=GROUP_BYTES), write(2), write(3))
    assert [numbers(unsent) for _ in range(3)] == [[0], [1], [2, 3]]


def test_a_write_that_caused_a_refusal_has_a_batch_of_its_own(unsent: UnsentWrites) -> None:
    fill(unsent, write(0), write(1, alone=True), write(2))
    assert [numbers(unsent) for _ in range(3)] == [[0], [1], [2]]


def test_a_write_that_is_sent_again_keeps_its_place(unsent: UnsentWrites) -> None:
    fill(unsent, write(3), write(8))
    unsent.restore(write(5))
    unsent.restore(write(1))
    assert numbers(unsent) == [1, 3, 5, 8]


def test_writes_of_a_batch_share_a_chain_and_the_next_ones_wait_until_it_is_free(unsent: UnsentWrites) -> None:
    fill(unsent, write(0, JOBS), write(1, JOBS))
    assert numbers(unsent) == [0, 1]
    fill(unsent, write(2, JOBS), write(3))
    assert numbers(unsent) == [3]
    assert numbers(unsent) == []
    unsent.free({JOBS})
    assert numbers(unsent) == [2]


def test_a_write_is_not_sent_before_an_earlier_one_about_the_same_chain(unsent: UnsentWrites) -> None:
    fill(unsent, write(0, JOBS))
    assert numbers(unsent) == [0]
    fill(unsent, write(1, JOBS, MAILS), write(2, MAILS), write(3))
    assert numbers(unsent) == [3]  # MAILS is free, but the blocked write must change it first
    unsent.free({JOBS})
    assert numbers(unsent) == [1, 2]


def test_a_chain_stays_busy_when_another_one_becomes_free(unsent: UnsentWrites) -> None:
    fill(unsent, write(0, JOBS, alone=True), write(1, MAILS, alone=True), write(2, JOBS), write(3, MAILS))
    assert [numbers(unsent) for _ in range(3)] == [[0], [1], []]
    unsent.free({MAILS})
    assert numbers(unsent) == [3]
    unsent.free({JOBS})
    assert numbers(unsent) == [2]


def test_a_write_can_be_removed_until_it_is_in_a_batch(unsent: UnsentWrites) -> None:
    sent, blocked, ready = write(0, JOBS), write(1, JOBS), write(2)
    fill(unsent, sent)
    assert numbers(unsent) == [0]
    fill(unsent, blocked)
    assert numbers(unsent) == []
    fill(unsent, ready)
    assert [unsent.remove(atomic_write) for atomic_write in (sent, blocked, ready)] == [False, True, True]
    unsent.free({JOBS})
    assert numbers(unsent) == []


def test_a_removed_write_leaves_its_chain_to_the_next_one(unsent: UnsentWrites) -> None:
    fill(unsent, write(0, JOBS))
    assert numbers(unsent) == [0]
    blocked = write(1, JOBS)
    fill(unsent, blocked)
    assert numbers(unsent) == []
    assert unsent.remove(blocked)
    unsent.free({JOBS})
    fill(unsent, write(2, JOBS))
    assert numbers(unsent) == [2]


def test_all_writes_can_be_taken_out_in_order_even_if_their_chains_are_busy(unsent: UnsentWrites) -> None:
    fill(unsent, write(0, JOBS))
    assert numbers(unsent) == [0]
    fill(unsent, write(1, JOBS))
    assert numbers(unsent) == []
    fill(unsent, write(2))
    left = [unsent.pop(), unsent.pop(), unsent.pop()]
    assert [atomic_write and atomic_write.number for atomic_write in left] == [1, 2, None]


def member(number: int) -> AtomicWrite:
    """Return a write without a part, to which members are added."""
    atomic_write = AtomicWrite(f"t{number}")
    atomic_write.number = number
    return atomic_write


def put(unsent: UnsentWrites, number: int, queue: str = "q", *, patient: bool = False) -> AtomicWrite:
    """Add a write with one put, and return it."""
    atomic_write = member(number)
    state = cast("QueueState", queue)
    put = Put(state, f"id{number}", f"p{number}-", b"x")
    unsent.share(atomic_write, Contribution(None, put, FOREVER if patient else AT_ONCE))
    return atomic_write


def end(unsent: UnsentWrites, number: int, bundle: Chain = JOBS, *, result: str = "") -> AtomicWrite:
    """Add a write that ends one message of a bundle and may put a message to a queue, and return it."""
    atomic_write = member(number)
    hold = HOLDS.setdefault(bundle, Hold())
    claim = BundledClaim(cast("BundleHold", hold), f"id{number}", b"x", number)
    put = Put(cast("QueueState", result), f"id{number}", f"p{number}-", b"x") if result else None
    unsent.share(atomic_write, Contribution(claim, put, FOREVER))
    return atomic_write


def members(unsent: UnsentWrites) -> list[list[int]]:
    return [[shared.number for shared in atomic_write.members] for atomic_write in unsent.next_batch(MAX_REQUEST)]


def test_puts_to_one_queue_are_sent_as_one_write(unsent: UnsentWrites) -> None:
    for number in range(3):
        put(unsent, number)
    unsent.add(write(3))
    assert members(unsent) == [[0, 1, 2], [3]]
    put(unsent, 4)  # the other puts have been sent
    assert members(unsent) == [[4]]


def test_a_put_does_not_pass_the_puts_of_another_write(unsent: UnsentWrites) -> None:
    put(unsent, 0)
    put(unsent, 1)
    unsent.add(write(2))
    put(unsent, 3)
    put(unsent, 4, "another")
    put(unsent, 5)
    assert members(unsent) == [[0, 1], [2], [3], [4], [5]]


def test_puts_that_may_wait_for_room_are_not_sent_with_those_that_may_not(unsent: UnsentWrites) -> None:
    put(unsent, 0)
    put(unsent, 1, patient=True)
    put(unsent, 2, patient=True)
    assert members(unsent) == [[0], [1, 2]]


def test_ends_of_one_bundle_are_sent_as_one_write(unsent: UnsentWrites) -> None:
    for number in range(4):
        end(unsent, number, (JOBS, MAILS)[number % 2])
    unsent.add(write(4))
    end(unsent, 5, JOBS)
    assert members(unsent) == [[0, 2, 5], [1, 3], [4]]


def test_ends_with_results_are_sent_as_one_write_if_bundle_and_queue_are_the_same(unsent: UnsentWrites) -> None:
    end(unsent, 0, result="q")
    end(unsent, 1, result="q")
    end(unsent, 2, MAILS, result="q")
    end(unsent, 3, MAILS, result="another")
    put(unsent, 4, "another", patient=True)
    end(unsent, 5, MAILS)
    end(unsent, 6, MAILS, result="another")
    assert members(unsent) == [[0, 1], [2], [3], [4], [5], [6]]


def test_each_member_answers_for_its_own_operations(unsent: UnsentWrites) -> None:
    writes = [end(unsent, number, result="q") for number in range(3)]
    (shared,) = unsent.next_batch(MAX_REQUEST)
    composed = cast("SharedWrite", shared)
    ended, created, another = composed._ended, composed._created, FixedOperations("t", (), NotCommittedError)
    assert ended is not None
    assert created is not None
    assert list(shared.separate()) == writes
    assert [part for _, part in shared.handlers_for(ended)] == composed._own_ended
    own_created = list(zip(writes, composed._own_created, strict=True))
    assert [shared.handler_at(created, number) for number in range(3)] == own_created
    assert shared.handlers_for(another) == [(atomic_write, another) for atomic_write in writes]
    assert [atomic_write.part.queues for atomic_write in writes] == [("q",)] * 3
    assert len({chain for atomic_write in writes for chain in atomic_write.part.chains}) == 1


def test_a_shared_write_is_as_large_as_its_members_and_is_sent_at_the_turn_of_the_first(unsent: UnsentWrites) -> None:
    for number in range(5, 8):
        end(unsent, number, result="q")
    assert unsent.arrived == 3
    unsent.restore(write(3))
    first, shared = unsent.next_batch(MAX_REQUEST)
    assert (first.number, shared.number) == (3, 5)
    assert shared.part.weight == sum(atomic_write.part.weight for atomic_write in shared.separate())


def test_a_shared_write_is_composed_separately_if_its_queue_has_no_bundles_any_more(unsent: UnsentWrites) -> None:
    state = SimpleNamespace(snapshot=SimpleNamespace(bundle=2, transform_put=None))
    unsent.share(member(0), Contribution(None, Put(cast("QueueState", state), "id", "p-", b"x"), AT_ONCE))
    (shared,) = unsent.next_batch(MAX_REQUEST)
    assert shared.uniform
    state.snapshot.bundle = 1
    assert not shared.uniform


def test_a_shared_write_has_a_limited_number_of_members_and_a_batch_of_writes(unsent: UnsentWrites) -> None:
    for number in range(GROUP + 100):
        put(unsent, number)
    sizes = [len(group) for group in members(unsent)]
    assert sizes == [MEMBERS] * 4
    assert sum(sizes) >= GROUP
    assert sum(len(group) for group in members(unsent)) == GROUP + 100 - sum(sizes)


def test_ends_of_a_bundle_wait_together_until_the_multi_about_it_has_ended(unsent: UnsentWrites) -> None:
    end(unsent, 0)
    (sent,) = unsent.next_batch(MAX_REQUEST)
    end(unsent, 1)
    assert members(unsent) == []
    end(unsent, 2)
    unsent.free(set(sent.part.chains))
    assert members(unsent) == [[1, 2]]


@pytest.mark.parametrize("add", [put, end])
@pytest.mark.parametrize("removed", range(3))
def test_one_of_several_members_can_be_removed(
    unsent: UnsentWrites, add: Callable[..., AtomicWrite], removed: int
) -> None:
    writes = [add(unsent, number) for number in range(3)]
    assert unsent.remove(writes[removed])
    assert not unsent.remove(writes[removed])
    left = [unsent.pop(), unsent.pop()]
    assert left == [atomic_write for atomic_write in writes if atomic_write is not writes[removed]]
    assert all(
        atomic_write is not None and atomic_write.part.weight > 0 for atomic_write in left
    )  # each write has its own part now
    assert unsent.pop() is None


@pytest.mark.parametrize("add", [put, end])
def test_the_others_keep_their_turn_when_a_member_is_removed(
    unsent: UnsentWrites, add: Callable[..., AtomicWrite]
) -> None:
    _, removed, _ = (add(unsent, number) for number in range(3))
    unsent.add(write(3))
    unsent.remove(removed)
    add(unsent, 4)  # it is not a member of the removed write
    assert members(unsent) == [[0], [2], [3], [4]]


def test_large_puts_are_not_collected_without_limit(unsent: UnsentWrites) -> None:
    state = cast("QueueState", "q")
    for number in range(6):
        put = Put(state, f"id{number}", f"p{number}-", bytes(SHARED_BYTES // 2))
        unsent.share(member(number), Contribution(None, put, AT_ONCE))
    groups = members(unsent)
    assert groups == [[number] for number in range(len(groups))]


def test_members_can_be_taken_out_one_by_one(unsent: UnsentWrites) -> None:
    for number in range(3):
        put(unsent, number)
    unsent.add(write(3))
    left = [unsent.pop() for _ in range(5)]
    assert [atomic_write and atomic_write.number for atomic_write in left] == [0, 1, 2, 3, None]
