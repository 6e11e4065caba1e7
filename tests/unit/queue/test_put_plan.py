"""The operations that the options of a put add to its create."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, cast

import pytest

from aiozkqueue.errors import DuplicateKeyError
from aiozkqueue.queue.commit.create_items import CreateItems
from aiozkqueue.queue.commit.put import Put
from aiozkqueue.queue.commit.put_plan import PutHook, PutPlan, join_plans
from aiozkqueue.queue.commit.write import Composition
from aiozkqueue.queue.state.queue_state import QueueState, SessionLinks
from aiozkqueue.zookeeper import Create, NodeExistsError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from aiozkqueue.runtime.clock import ServerClock
    from aiozkqueue.zookeeper import Operation, ZooKeeper, ZooKeeperError


class KeyNode(PutHook):
    """A znode that may exist only once."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.left_out = False

    @property
    def dropped(self) -> bool:
        return self.left_out

    def operation(self, item: str) -> Operation:  # noqa: ARG002 - the same for any item
        return Create(self.path)

    def repair(
        self,
        operation: Operation,  # noqa: ARG002 - the same for any operation
        error: ZooKeeperError,
    ) -> Coroutine[object, object, None] | None:
        raise DuplicateKeyError(str(error))


class Elsewhere:
    """A separate path for the item."""

    ready = True
    needs_time = False

    async def prepare(self) -> None:
        """Read nothing."""

    def path(self, prefix: str) -> str:
        return f"lanes/own/{prefix}"


@pytest.fixture
def state() -> QueueState:
    links = SessionLinks(
        cast("ServerClock", None), Random(1), lambda _: (), lambda *_: None, cast("Any", None), cast("Any", None)
    )
    return QueueState(cast("ZooKeeper", None), "/zms", "jobs", links)


def composed(part: CreateItems) -> Composition:
    composition = Composition(cast("ServerClock", None))
    part.compose(composition)
    return composition


def operations_of(part: CreateItems) -> list[Operation]:
    return composed(part).operations


def paths(part: CreateItems) -> list[str]:
    return [operation.path.removeprefix("/zms/jobs/") for operation in operations_of(part)]


def test_companions_come_first_and_the_creates_last(state: QueueState) -> None:
    key = KeyNode("/zms/jobs/keys/k")
    puts = [Put(state, "a", "item-ia-", b"1"), Put(state, "b", "item-ib-", b"2", PutPlan((key,), Elsewhere()))]
    assert paths(CreateItems(puts)) == ["keys/k", "items/item-ia-", "lanes/own/item-ib-"]


def test_a_companion_explains_its_refusal(state: QueueState) -> None:
    put = Put(state, "b", "item-ib-", b"", PutPlan((KeyNode("/zms/jobs/keys/k"),)))
    composition = composed(CreateItems([put]))
    answered = composition.handler_of(0, 0)
    assert answered is not None
    handler, first = answered
    assert first == 0
    with pytest.raises(DuplicateKeyError):
        handler.repair(composition.operations[0], NodeExistsError("there"))


def test_an_operation_left_out_of_a_plan_is_not_sent(state: QueueState) -> None:
    key = KeyNode("/zms/jobs/keys/k")
    dropped = PutPlan((key,))
    part = CreateItems([Put(state, "a", "item-ia-", b"", dropped), Put(state, "b", "item-ib-", b"")])
    assert len(operations_of(part)) == 3
    key.left_out = True
    assert paths(part) == ["items/item-ib-"]
    part.applied(["/zms/jobs/items/item-ib-0000000001"], None)


def test_operations_that_the_queue_adds_to_every_put_are_added_at_sending(state: QueueState) -> None:
    part = CreateItems([Put(state, "a", "item-ia-", b"")])
    record = KeyNode("/zms/jobs/history/r")
    state.snapshot = replace(
        state.snapshot,
        transform_put=lambda put: put if put.plan is not None else put._replace(plan=PutPlan((record,))),
    )
    for _attempt in range(2):
        assert paths(part) == ["history/r", "items/item-ia-"]


def test_plans_are_joined_in_their_order() -> None:
    first, second = KeyNode("/a"), KeyNode("/b")
    place = Elsewhere()
    joined = join_plans([None, PutPlan((first,), place), None, PutPlan((second,))])
    assert joined is not None
    assert (joined.hooks, joined.place, joined.weight) == ((first, second), place, first.weight + second.weight)
    assert join_plans([None, None]) is None
