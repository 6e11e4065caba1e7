"""The order in which writes are sent, and those that are parked until a multi about their chain has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from aiozkqueue.errors import NotCommittedError
from aiozkqueue.queue.commit.register import FixedOperations
from aiozkqueue.queue.commit.unsent import COMPANIONS, GROUP, GROUP_BYTES, UnsentWrites
from aiozkqueue.queue.commit.write import AtomicWrite
from aiozkqueue.zookeeper.wire import MAX_REQUEST

if TYPE_CHECKING:
    from aiozkqueue.queue.commit.write import Chain
    from aiozkqueue.queue.state.queue_state import QueueState

JOBS, MAILS = (cast("Chain", name) for name in ("jobs", "mails"))


class Changes(FixedOperations):
    """A part that continues chains."""

    def __init__(self, chains: tuple[Chain, ...], weight: int) -> None:
        super().__init__("chains", (), lambda error: NotCommittedError(str(error)))
        self.chains, self.weight = chains, weight


class Alike(Changes):
    """A part that may be sent as one with others about the same subject."""

    def __init__(self, subject: str, *, puts: bool = False, chains: tuple[Chain, ...] = ()) -> None:
        super().__init__(chains, 200)
        self._about = subject
        self.queues = (cast("QueueState", subject),) if puts else ()

    @property
    def subject(self) -> str:
        """The name of its subject."""
        return self._about


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
    assert numbers(unsent) == [3]  # mails are free, but the parked write is to change them first
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
    sent, parked, ready = write(0, JOBS), write(1, JOBS), write(2)
    fill(unsent, sent)
    assert numbers(unsent) == [0]
    fill(unsent, parked)
    assert numbers(unsent) == []
    fill(unsent, ready)
    assert [unsent.remove(one) for one in (sent, parked, ready)] == [False, True, True]
    unsent.free({JOBS})
    assert numbers(unsent) == []


def test_a_removed_write_leaves_its_chain_to_the_next_one(unsent: UnsentWrites) -> None:
    fill(unsent, write(0, JOBS))
    assert numbers(unsent) == [0]
    parked = write(1, JOBS)
    fill(unsent, parked)
    assert numbers(unsent) == []
    assert unsent.remove(parked)
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
    assert [one and one.number for one in left] == [1, 2, None]


def alike(number: int, subject: str, *chains: Chain, puts: bool = False) -> AtomicWrite:
    atomic_write = AtomicWrite("t", Alike(subject, puts=puts, chains=chains))
    atomic_write.number = number
    return atomic_write


def members(unsent: UnsentWrites) -> list[list[int]]:
    return [[one.number for one in (leader, *leader.companions)] for leader in unsent.next_batch(MAX_REQUEST)]


def test_writes_about_one_subject_are_companions_of_the_first(unsent: UnsentWrites) -> None:
    joined = [unsent.add(alike(number, "ab"[number % 2])) for number in range(4)]
    assert joined == [False, False, True, True]
    assert unsent.add(write(4)) is False
    assert members(unsent) == [[0, 2], [1, 3], [4]]
    assert unsent.add(alike(5, "a")) is False  # the first one has been sent


def test_a_put_does_not_pass_the_puts_of_another_write(unsent: UnsentWrites) -> None:
    for atomic_write in (alike(0, "q", puts=True), alike(1, "q", puts=True), write(2), alike(3, "q", puts=True)):
        unsent.add(atomic_write)
    assert members(unsent) == [[0, 1], [2], [3]]


def test_a_write_has_a_limited_number_of_companions_and_a_batch_of_writes(unsent: UnsentWrites) -> None:
    for number in range(GROUP + 100):
        unsent.add(alike(number, "a"))
    sizes = [len(group) for group in members(unsent)]
    assert sizes == [COMPANIONS + 1] * 4
    assert sum(sizes) >= GROUP
    assert sum(len(group) for group in members(unsent)) == GROUP + 100 - sum(sizes)


def test_companions_of_a_parked_write_are_parked_with_it(unsent: UnsentWrites) -> None:
    unsent.add(alike(0, "a", JOBS))
    assert members(unsent) == [[0]]
    unsent.add(alike(1, "a", JOBS))
    assert members(unsent) == []
    assert unsent.add(alike(2, "a", JOBS)) is True
    unsent.free({JOBS})
    assert members(unsent) == [[1, 2]]


@pytest.mark.parametrize("removed", range(3))
def test_one_of_several_companions_can_be_removed(unsent: UnsentWrites, removed: int) -> None:
    writes = [alike(number, "a") for number in range(3)]
    for atomic_write in writes:
        unsent.add(atomic_write)
    assert unsent.remove(writes[removed])
    assert not unsent.remove(writes[removed])
    assert numbers(unsent) == [number for number in range(3) if number != removed]


def test_companions_can_be_taken_out_one_by_one(unsent: UnsentWrites) -> None:
    for number in range(3):
        unsent.add(alike(number, "a"))
    unsent.add(write(3))
    left = [unsent.pop() for _ in range(5)]
    assert [one and one.number for one in left] == [0, 1, 2, 3, None]
