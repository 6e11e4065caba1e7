"""However listings, watches, claims and releases interleave, no free item is forgotten or offered needlessly.

The state machine plays the server, another consumer, and the dispatcher that drives one backlog. Listings take time,
during which everything else continues. The backlog does not see the other consumer's locks, but it is notified of their
removal.
"""

from __future__ import annotations

from enum import Enum
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aiozkqueue.layout import ItemRef
from aiozkqueue.queue.candidates.backlog import Backlog
from aiozkqueue.queue.candidates.partition import Partition
from aiozkqueue.runtime.strings import Strings

LANES = ("items", "lanes/s1g0")


class Item(Enum):
    FREE = 1
    LOCKED_BY_OTHER = 2
    OURS = 3
    GONE = 4


def place_of(number: int) -> str:
    return f"{LANES[number % 2]}/item-iID{number}-{number:010d}"


def number_of(place: str) -> int:
    return int(place[-10:])


class Account(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.backlog = Backlog(Random(1))
        self.backlog.reshare(Partition.among("a", ["a", "b"]))
        self.now = 0.0
        self.items: list[Item] = []
        self.lane: str | None = None  # being listed
        self.answer: tuple[list[str], set[str]] | None = None  # as the server has sent it, and in progress
        self.seen = True  # the last listing is used up, and the next one replaces it
        self.settled: set[str] = set()  # our claims since the listing began

    def some(self, state: Item, chosen: int) -> int | None:
        numbers = [number for number, each in enumerate(self.items) if each is state]
        return numbers[chosen % len(numbers)] if numbers else None

    def excluded(self, message_id: str) -> bool:
        return self.items[int(message_id[2:])] is Item.OURS

    def add_reported(self, number: int) -> None:
        lane, name = ItemRef.parse(place_of(number))
        self.backlog.add_reported(lane, {name: f"ID{number}"}, self.now)

    # -- the server and the other consumer

    @rule()
    def put(self) -> None:
        self.items.append(Item.FREE)
        self.add_reported(len(self.items) - 1)

    @rule(chosen=st.integers(0, 99))
    def other_locks(self, chosen: int) -> None:
        number = self.some(Item.FREE, chosen)
        if number is not None:
            self.items[number] = Item.LOCKED_BY_OTHER

    @rule(chosen=st.integers(0, 99))
    def other_is_made_to_let_go(self, chosen: int) -> None:
        number = self.some(Item.LOCKED_BY_OTHER, chosen)
        if number is not None:
            self.items[number] = Item.FREE
            self.add_reported(number)

    @rule(chosen=st.integers(0, 99))
    def other_consumes(self, chosen: int) -> None:
        number = self.some(Item.LOCKED_BY_OTHER, chosen)
        if number is not None:
            self.items[number] = Item.GONE
            self.backlog.forget(place_of(number))

    @rule(seconds=st.floats(0.001, 1))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    # -- the dispatcher

    @precondition(lambda self: self.lane is None and self.seen)
    @rule(lane=st.sampled_from(LANES))
    def begin_listing(self, lane: str) -> None:
        self.lane = lane
        self.settled.clear()
        self.backlog.begin_listing(lane)

    @precondition(lambda self: self.lane is not None and self.answer is None)
    @rule()
    def server_answers(self) -> None:
        places = [place_of(number) for number, each in enumerate(self.items) if each is not Item.GONE]
        names = [place.rpartition("/")[2] for place in places if place.rpartition("/")[0] == self.lane]
        locked = {f"ID{number}" for number, each in enumerate(self.items) if each in {Item.LOCKED_BY_OTHER, Item.OURS}}
        self.answer = (names, locked)

    @precondition(lambda self: self.answer is not None)
    @rule()
    def end_listing(self) -> None:
        assert self.answer is not None
        assert self.lane is not None
        names, locked = self.answer
        shares = self.backlog.share_collector(self.lane)
        shares.take(names)
        self.backlog.fill(self.lane, shares, Strings(locked | self.settled), self.now)
        self.lane = self.answer = None
        self.seen = False

    @precondition(lambda self: self.lane is None)
    @rule(limit=st.integers(1, 5))
    def claim_own(self, limit: int) -> None:
        places = self.backlog.pop(limit, self.excluded, self.now)
        self.seen = self.seen or len(places) < limit
        self.claim(places)

    @precondition(lambda self: self.lane is None)
    @rule()
    def claim_others(self) -> None:
        self.claim(self.backlog.steal(self.excluded, self.now))

    @precondition(lambda self: self.lane is None)
    @rule(limit=st.integers(1, 5))
    def claim_any(self, limit: int) -> None:
        self.claim(self.backlog.take_of_peers(limit, self.excluded))

    @rule(chosen=st.integers(0, 99))
    def consume(self, chosen: int) -> None:
        number = self.some(Item.OURS, chosen)
        if number is not None:
            self.items[number] = Item.GONE
            self.settled.add(f"ID{number}")

    @rule(chosen=st.integers(0, 99))
    def release(self, chosen: int) -> None:
        number = self.some(Item.OURS, chosen)
        if number is not None:
            self.items[number] = Item.FREE
            self.backlog.put_back([place_of(number)])

    def claim(self, places: list[str]) -> None:
        """Claim all items or none, depending on the server."""
        numbers = [number_of(place) for place in places]
        assert len(set(numbers)) == len(numbers), "an item is twice in one batch"
        assert [place_of(number) for number in numbers] == places
        assert not any(self.items[number] is Item.OURS for number in numbers), "an item is already ours"
        taken = next((number for number in numbers if self.items[number] is Item.LOCKED_BY_OTHER), None)
        if taken is not None:
            self.backlog.put_last([place_of(number) for number in numbers if number != taken])
            return
        for number in numbers:
            if self.items[number] is Item.FREE:
                self.items[number] = Item.OURS

    # -- the invariants

    @invariant()
    def each_stored_item_has_a_time(self) -> None:
        if self.lane is None and self.backlog.steal(self.excluded, self.now - 1e6):
            raise AssertionError("stolen before its time")

    def teardown(self) -> None:
        """All free items are found without another listing."""
        while self.lane is not None:
            if self.answer is None:
                self.server_answers()
            self.end_listing()
        while True:
            self.now += 10
            before = self.items.count(Item.FREE)
            places = self.backlog.pop(3, self.excluded, self.now)
            if not places:
                due = self.backlog.next_steal(self.excluded)
                if due is None:
                    break
                self.now = max(self.now, due)
                places = self.backlog.steal(self.excluded, self.now)
            self.claim(places)
            assert self.items.count(Item.FREE) <= before
        assert self.items.count(Item.FREE) == 0, "free items were forgotten"


TestAccount = Account.TestCase
TestAccount.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
