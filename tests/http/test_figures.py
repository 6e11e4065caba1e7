"""Size, waiting, in flight, delayed and retrying mean the same in every view, and add up."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from typing import TYPE_CHECKING

import httpx
import pytest

import aiozkqueue as zq
from aiozkqueue.metrics import collector
from tests.integration.queue.conftest import eventually
from tests.integration.queue.test_metrics import values_of
from tests.integration.queue.test_staged_batches import Writer

if TYPE_CHECKING:
    from .conftest import Service

pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("frequent_samples")]

WORDS = ("size", "waiting", "in flight", "delayed", "retrying")


async def command(hosts: str, root: str, *arguments: str) -> dict[str, object]:
    """Run the command with ``--json`` and return the last object that it prints."""
    environment = os.environ | {"AIOZKQUEUE_HOSTS": hosts, "AIOZKQUEUE_ROOT": root}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "aiozkqueue", *arguments, "--json", env=environment, stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await process.communicate()
    record: dict[str, object] = json.loads(printed.splitlines()[-1])
    return record


def row_of(page: str, queue: str) -> dict[str, str]:
    """Return the cells of a queue's row in the dashboard's table, by heading."""
    heads = re.findall(r"<th scope=\"col\"[^>]*>(.*?)</th>", page)
    heads = [re.sub("<[^>]*>", "", head) for head in heads]
    row = next(row for row in page.split("<tr") if f">{queue}</a>" in row)
    cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)
    return {head.lower(): re.sub("<[^>]*>", "", cell) for head, cell in zip(heads, cells, strict=True)}


async def test_each_message_count_is_the_same_in_every_view(
    service: Service, session: zq.QueueSession, zookeeper: str, queue_root: str
) -> None:
    jobs = session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(3600)))
    await jobs.put_many([b"1", b"2", b"3", b"4", b"5", b"6"])
    await jobs.put_many([b"7", b"8"], delay=3600)
    await jobs.put(b"9", delay=100_000)
    with pytest.raises(ValueError, match="no ink"):
        async with jobs.consume(until_idle=10) as deliveries:
            async for delivery in deliveries:
                async with delivery:
                    raise ValueError("no ink")
    await jobs.leases.take(lifetime=3600)
    async with session.transaction(autocommit=False) as tx:
        await tx.take(jobs)
        expected = dict(zip(WORDS, (9, 3, 1, 5, 2), strict=True))
        assert expected["size"] == expected["waiting"] + expected["in flight"] + expected["delayed"]

        stats = await jobs.stats()
        assert {word: getattr(stats, word.replace(" ", "_")) for word in WORDS} == expected
        assert stats.delayed == stats.retrying + stats.scheduled
        assert await jobs.size() == expected["size"]
        assert await jobs.claimed() == expected["in flight"]

        for shown in (("stats", "jobs"), ("top", "jobs", "--once", "--interval", "0.1")):
            record = await command(zookeeper, queue_root, *shown)
            assert {word: record[word.replace(" ", "_")] for word in WORDS} == expected, shown

        scraped = values_of(await collector(session).text())
        names = {"size": "messages"} | {word: word.replace(" ", "_") for word in WORDS[1:]}
        assert {word: scraped[f"aiozkqueue_queue_{name} jobs"] for word, name in names.items()} == expected

        async with httpx.AsyncClient(base_url=service.url, follow_redirects=True, timeout=30) as browser:
            await browser.post("/sign-in", data={"key": service.key})

            async def shown_in_list() -> bool:
                page = (await browser.get("/")).text
                return ">jobs</a>" in page and int(row_of(page, "jobs")["size"]) == expected["size"]

            await eventually(shown_in_list)  # in the next sample of the service
            row = row_of((await browser.get("/")).text, "jobs")
            assert {word: int(row[word]) for word in WORDS} == expected
            page = (await browser.get("/queues/jobs")).text
        shown_figures = re.findall(r"<strong>(\d+)</strong> (?:of them )?([a-z ]+)<", page)
        figures = {label: int(number) for number, label in shown_figures}
        assert {word: figures[word] for word in WORDS} == expected

        counted = (await service.get("/queue/1/jobs/claimcount")).json()
        assert counted == expected["in flight"] + expected["retrying"], "EmoDB counts leases as claims"
        await tx.rollback()


async def test_an_incomplete_batch_does_not_count_as_a_claim(service: Service, session: zq.QueueSession) -> None:
    writer = Writer(session)
    await writer.put(await writer.begin(), "a")
    assert (await session.queue("orders").stats()).staged == 1
    assert (await service.get("/queue/1/orders/claimcount")).json() == 0


async def test_each_held_message_of_a_bundle_counts_as_a_claim(service: Service, session: zq.QueueSession) -> None:
    orders = session.queue("orders")
    await orders.configure(zq.QueueConfig(bundle=3))
    await orders.put_many([b"1", b"2", b"3"])
    async with session.transaction() as tx:
        assert len(await tx.take_many(orders, 3, timeout=30)) == 3
        assert (await orders.stats()).in_flight == 3
        assert (await service.get("/queue/1/orders/claimcount")).json() == 3
