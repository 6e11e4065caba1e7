"""Buses, notification queues and sticky queues from the command line."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pydantic import BaseModel

import aiozkqueue as zq
from aiozkqueue.bus import Bus
from aiozkqueue.cli.exits import Exit
from aiozkqueue.schedule import Notifications
from tests.integration.queue.test_obstacles import set_acl

if TYPE_CHECKING:
    from tests.cli.conftest import Cli
    from tests.observer import Observer

LATER = datetime(2999, 1, 1, tzinfo=UTC)


class Event(BaseModel):
    number: int


async def test_buses_are_listed_with_the_waiting_events_of_each_group(
    cli: Cli, zookeeper: str, queue_root: str
) -> None:
    assert (await asyncio.to_thread(cli, "bus", "list")).status == 1
    missing = await asyncio.to_thread(cli, "bus", "groups", "orders")
    assert (missing.status, "orders" in missing.stderr) == (1, True)
    async with zq.connect(zookeeper, root=queue_root) as session:
        bus = Bus(session, "orders", Event)
        await bus.post(Event(number=1))
        await bus.join("audit")
        await bus.post(Event(number=2))
    assert (await asyncio.to_thread(cli, "bus", "list", "--json")).records == [{"bus": "orders", "groups": ["audit"]}]
    groups = (await asyncio.to_thread(cli, "bus", "groups", "orders", "--json")).records
    assert [(group["group"], group["queue"], group["size"]) for group in groups] == [
        (None, "orders", 2),
        ("audit", "orders@audit", 1),
    ]
    assert "orders@audit" in (await asyncio.to_thread(cli, "bus", "groups", "orders")).text


def test_a_missing_notification_queue_says_how_it_is_created(cli: Cli) -> None:
    for command, *rest in (("find",), ("schedule", "x", "--at", "2999-01-01T00:00Z"), ("ready",)):
        absent = cli("notifications", command, "billing", "reminders", *rest)
        assert absent.status == 1
        assert absent.stderr.endswith("; create it in a program with Notifications(session).create(...)\n")


async def test_notification_queues_are_listed_with_ready_entries_and_counted_at_a_date(
    cli: Cli, zookeeper: str, queue_root: str
) -> None:
    assert (await asyncio.to_thread(cli, "notifications", "list")).status == 1
    async with zq.connect(zookeeper, root=queue_root) as session:
        reminders = await Notifications(session).create("billing", "reminders", bytes)
        await reminders.schedule(b"now", datetime.now(UTC))
        await reminders.schedule(b"later", LATER)
    [listed] = (await asyncio.to_thread(cli, "notifications", "list", "--json")).records
    assert (listed["service"], listed["name"], listed["size"], listed["ready"]) == ("billing", "reminders", 2, 1)
    ready = ("notifications", "ready", "billing", "reminders")
    assert (await asyncio.to_thread(cli, *ready)).text == "1 ready\n"
    assert (await asyncio.to_thread(cli, *ready, "--at", "2999-01-01T00:00+00:00")).text == "2 ready\n"
    naive = await asyncio.to_thread(cli, *ready, "--at", "2999-01-01T00:00")
    assert (naive.status, "zone" in naive.stderr) == (2, True)


async def test_late_messages_of_another_node_are_reaped(cli: Cli, zookeeper: str, queue_root: str) -> None:
    sticky = zq.QueueConfig(affinity="producer", reap_after=0.1, reap_every=3600)
    async with zq.connect(zookeeper, root=queue_root, node="gone") as session:
        await session.queue("jobs").configure(sticky)
        await session.queue("jobs").put(b"1")
    await asyncio.sleep(0.5)  # until the message is late
    assert (await asyncio.to_thread(cli, "reap", "jobs")).text == "1 reaped\n"
    assert (await asyncio.to_thread(cli, "reap", "jobs")).status == 1


async def test_the_reap_command_takes_messages_of_its_own_host_up_to_the_limit(
    cli: Cli, zookeeper: str, queue_root: str
) -> None:
    sticky = zq.QueueConfig(affinity="producer", reap_after=0.1, reap_every=3600)
    async with zq.connect(zookeeper, root=queue_root) as session:
        await session.queue("jobs").configure(sticky)
        await session.queue("jobs").put_many([b"1", b"2", b"3"])
    await asyncio.sleep(0.2)  # until the messages are late
    limited = await asyncio.to_thread(cli, "configure", "jobs", "--reap-limit", "1")
    assert limited.status == 0, limited.stderr
    assert (await asyncio.to_thread(cli, "reap", "jobs")).text == "1 reaped\n"
    assert (await asyncio.to_thread(cli, "reap", "jobs", "--limit", "9")).text == "2 reaped\n"


async def test_an_update_with_other_search_keys_fails_with_the_reason(
    cli: Cli, zookeeper: str, queue_root: str
) -> None:
    async with zq.connect(zookeeper, root=queue_root) as session:
        reminders = await Notifications(session).create("billing", "reminders", bytes)
        made = await reminders.schedule(b"1", LATER, search_key2="t")
    update = ("notifications", "update", "billing", "reminders", made, "2", "--key2")
    refused = await asyncio.to_thread(cli, *update, "u")
    assert (refused.status, "has other keys" in refused.stderr) == (1, True)
    assert (await asyncio.to_thread(cli, *update, "t")).status == 0


async def test_buses_and_notification_queues_are_listed_beside_those_that_cannot_be_read(
    cli: Cli, zookeeper: str, queue_root: str, server_view: Observer
) -> None:
    async with zq.connect(zookeeper, root=queue_root) as session:
        for name in ("invoices", "orders", "parcels"):
            await Bus(session, name, Event).post(Event(number=1))
            await Bus(session, name, Event).join("audit")
            await Notifications(session).create("billing", name, Event)
    await set_acl(server_view, f"{queue_root}/.buses/orders", readable=False)
    await set_acl(server_view, f"{queue_root}/billing:orders", readable=False)
    await server_view.set(f"{queue_root}/.buses/parcels", b"{not json")
    buses = await asyncio.to_thread(cli, "bus", "list", "--json")
    assert (buses.status, [bus["bus"] for bus in buses.records]) == (Exit.REFUSED, ["invoices"])
    assert f"read {queue_root}/.buses/orders" in buses.stderr
    assert f"{queue_root}/.buses/parcels: " in buses.stderr
    queues = await asyncio.to_thread(cli, "notifications", "list", "--json")
    assert (queues.status, [queue["name"] for queue in queues.records]) == (Exit.REFUSED, ["invoices", "parcels"])
    assert "'billing:orders'" in queues.stderr
