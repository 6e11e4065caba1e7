"""A call that needs an existing queue suggests the one with the most similar name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.batches.ledger import Ledger
from aiozkqueue.errors import NotFoundError
from aiozkqueue.operations.similar import COMPARED, similar_queue
from aiozkqueue.session.internals import core_of

if TYPE_CHECKING:
    import aiozkqueue as zq


async def test_opening_a_ledger_of_a_mistyped_queue_suggests_the_queue(session: zq.QueueSession) -> None:
    await session.queue("orders").put(b"1")
    error = f"there is no queue 'ordrs' below {core_of(session).root}; did you mean 'orders'?"
    with pytest.raises(NotFoundError, match=re.escape(error)):
        await Ledger(core_of(session).handle("ordrs"), "spark").open()


async def test_diagnosis_of_a_mistyped_queue_suggests_the_queue(session: zq.QueueSession) -> None:
    await session.queue("orders").put(b"1")
    [finding] = [finding for finding in (await session.admin.diagnose("ordrs")).findings if finding.subject == "ordrs"]
    assert finding.advice == "did you mean 'orders'?"


async def test_only_existing_queues_are_suggested(session: zq.QueueSession) -> None:
    core = core_of(session)
    await core.zookeeper.ensure(f"{core.root}/ordr")  # a znode that is not a queue
    await core.zookeeper.ensure(f"{core.root}/.orders")
    assert await similar_queue(core, "ordrs") is None
    await session.queue("borders").put(b"1")
    assert await similar_queue(core, "ordrs") == "borders"
    assert await similar_queue(core, "ordrs", visible=lambda name: name != "borders") is None


async def test_the_number_of_compared_names_is_bounded(
    session: zq.QueueSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[str] = []

    def visible(name: str) -> bool:
        compared.append(name)
        return True

    assert COMPARED <= 1_000
    monkeypatch.setattr("aiozkqueue.operations.similar.COMPARED", 3)
    core = core_of(session)
    for number in range(5):
        await core.zookeeper.ensure(f"{core.root}/order{number}")
    assert await similar_queue(core, "orders", visible=visible) is None
    assert len(compared) == 3
