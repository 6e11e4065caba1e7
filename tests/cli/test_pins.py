"""The pins that keep history from clean-up are listed and removed."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import aiozkqueue as zq
from aiozkqueue.cli.exits import Exit
from aiozkqueue.operations.history_pins import pin
from aiozkqueue.session.internals import core_of
from tests.integration.queue.test_obstacles import set_acl

if TYPE_CHECKING:
    from tests.cli.conftest import Cli
    from tests.observer import Observer


async def test_a_queue_that_may_not_be_read_does_not_hide_the_pins_of_the_others(
    cli: Cli, zookeeper: str, queue_root: str, server_view: Observer
) -> None:
    async with zq.connect(zookeeper, root=queue_root) as session:
        for name in ("invoices", "orders", "parcels"):
            await session.queue(name).configure(zq.QueueConfig(history=zq.History()))
            await pin(core_of(session).handle(name), "audit", datetime(1970, 1, 1, tzinfo=UTC))
    await set_acl(server_view, f"{queue_root}/orders/history/.pins", readable=False)
    listed = await asyncio.to_thread(cli, "pins", "list", "--json")
    assert (listed.status, [pin["queue"] for pin in listed.records]) == (Exit.REFUSED, ["invoices", "parcels"])
    assert "queue 'orders'" in listed.stderr
    removed = await asyncio.to_thread(cli, "pins", "remove", "audit", "--yes", "--json")
    assert (removed.status, removed.records) == (Exit.REFUSED, [{"name": "audit", "queues": ["invoices", "parcels"]}])
    assert "queue 'orders'" in removed.stderr


def test_pins_of_an_abandoned_audit_are_listed_and_removed(cli: Cli, zookeeper: str, queue_root: str) -> None:
    async def audit_and_die() -> None:
        async with zq.connect(zookeeper, root=queue_root) as session:
            for name in ("orders", "invoices"):
                await session.queue(name).configure(zq.QueueConfig(history=zq.History()))
                await pin(core_of(session).handle(name), "audit", datetime(1970, 1, 1, tzinfo=UTC))

    assert cli("pins", "list").status == 1
    asyncio.run(audit_and_die())
    assert [(pin["queue"], pin["name"]) for pin in cli("pins", "list", "--json").records] == [
        ("invoices", "audit"),
        ("orders", "audit"),
    ]
    assert "1970-01-01" in cli("pins", "list", "orders").text
    assert cli("pins", "remove", "audit").status == 2, "there is no terminal to ask for a confirmation"
    assert cli("pins", "remove", "audit", "orders", "--yes", "--json").records == [
        {"name": "audit", "queues": ["orders"]}
    ]
    assert [pin["queue"] for pin in cli("pins", "list", "--json").records] == ["invoices"]
    assert cli("pins", "remove", "audit", "--yes").stderr == "aiozkqueue: removed the pin 'audit' from invoices\n"
    assert cli("pins", "remove", "audit", "--yes").status == 1
