"""What a put that is not plain adds to its create."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, cast

import pytest

from aiozkqueue.errors import DuplicateKeyError, NotCommittedError
from aiozkqueue.queue.commit.put_plan import PutCompanion, PutPlan, join
from aiozkqueue.queue.commit.puts import Put, PutSettlement
from aiozkqueue.queue.state.queue_state import QueueStore
from aiozkqueue.zookeeper import Create, NodeExistsError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from aiozkqueue.zookeeper import Operation, ZooKeeper, ZooKeeperError


class KeyNode(PutCompanion):
    """A znode that may be there only once."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.left_out = False
        self.fates: list[BaseException | None] = []

    @property
    def dropped(self) -> bool:
        return self.left_out

    def operation(self) -> Operation:
        return Create(self.path)

    def mend(self, operation: Operation, error: ZooKeeperError) -> Coroutine[object, object, None] | None:  # noqa: ARG002
        raise DuplicateKeyError(str(error))

    def settled(self, error: BaseException | None) -> None:
        self.fates.append(error)


class Elsewhere:
    """A place of its own."""

    ready = True

    async def prepare(self) -> None:
        """Nothing to find out."""

    def path(self, prefix: str) -> str:
        return f"lanes/own/{prefix}"


@pytest.fixture
def store() -> QueueStore:
    return QueueStore(cast("ZooKeeper", None), "/zms", "jobs", lambda *_: None, Random(1))


def operations_of(settlement: PutSettlement) -> list[Operation]:
    operations: list[Operation] = []
    settlement.compose(operations)
    return operations


def paths(settlement: PutSettlement) -> list[str]:
    return [operation.path.removeprefix("/zms/jobs/") for operation in operations_of(settlement)]


def test_companions_come_first_and_the_creates_last(store: QueueStore) -> None:
    key = KeyNode("/zms/jobs/keys/k")
    puts = [Put(store, "a", "item-ia-", b"1"), Put(store, "b", "item-ib-", b"2", PutPlan((key,), Elsewhere()))]
    assert paths(PutSettlement("t", puts)) == ["keys/k", "items/item-ia-", "lanes/own/item-ib-"]


def test_a_companion_explains_its_refusal(store: QueueStore) -> None:
    put = Put(store, "b", "item-ib-", b"", PutPlan((KeyNode("/zms/jobs/keys/k"),)))
    settlement = PutSettlement("t", [put])
    key = operations_of(settlement)[0]
    with pytest.raises(DuplicateKeyError):
        settlement.refused(0, key, NodeExistsError("there"))


def test_what_is_dropped_is_not_sent(store: QueueStore) -> None:
    key = KeyNode("/zms/jobs/keys/k")
    dropped = PutPlan((key,))
    settlement = PutSettlement("t", [Put(store, "a", "item-ia-", b"", dropped), Put(store, "b", "item-ib-", b"")])
    assert len(operations_of(settlement)) == 3
    key.left_out = True
    assert paths(settlement) == ["items/item-ib-"]
    settlement.applied(["/zms/jobs/items/item-ib-0000000001"])


@pytest.mark.parametrize("error", [None, NotCommittedError("no")])
async def test_a_companion_hears_once_what_became_of_the_put(
    store: QueueStore, error: NotCommittedError | None
) -> None:
    key = KeyNode("/zms/jobs/keys/k")
    settlement = PutSettlement("t", [Put(store, "b", "item-ib-", b"", PutPlan((key,)))])
    operations_of(settlement)
    operations_of(settlement)  # the attempt that came before was refused because of another
    if error is None:
        settlement.succeed(None)
    else:
        settlement.fail(error)
    assert key.fates == [error]


def test_what_the_queue_asks_of_every_put_is_added_when_it_is_sent(store: QueueStore) -> None:
    settlement = PutSettlement("t", [Put(store, "a", "item-ia-", b"")])
    record = KeyNode("/zms/jobs/history/r")
    store.shape = lambda put: put if put.plan is not None else put._replace(plan=PutPlan((record,)))
    for _attempt in range(2):
        assert paths(settlement) == ["history/r", "items/item-ia-"]


def test_plans_are_joined_in_their_order() -> None:
    one, other = KeyNode("/a"), KeyNode("/b")
    place = Elsewhere()
    joined = join([None, PutPlan((one,), place), None, PutPlan((other,))])
    assert joined is not None
    assert (joined.companions, joined.place, joined.weight) == ((one, other), place, one.weight + other.weight)
    assert join([None, None]) is None
