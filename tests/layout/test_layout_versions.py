"""The current code reads, takes and settles what programs of each layout version have stored."""

from __future__ import annotations

import asyncio
import os
import re
from typing import TYPE_CHECKING, NamedTuple

import pytest

import aiozkqueue as zq
from aiozkqueue.layout import MalformedError, StoredConfig, configuration
from aiozkqueue.testing import TestClock
from aiozkqueue.testing.cleaning import delete_tree
from aiozkqueue.zookeeper import connect

from .generate import FIXTURES
from .stories import STORIES, Now, Story
from .trees import Dump, read_tree, write_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The znodes that belong to messages.
MESSAGE = re.compile(r"/zms/[^/]+/((items|locks|meta|keys|due|dlq|waiting)/.+|(lanes|later)/[^/]+/.+)")


class Loaded(NamedTuple):
    """A dump, and the connection string of the server where it was restored."""

    dump: Dump
    hosts: str


DUMPS = {file.stem: Dump.model_validate_json(file.read_bytes()) for file in sorted(FIXTURES.glob("*.json"))}


@pytest.fixture(scope="module")
def loaded(request: pytest.FixtureRequest, zookeeper: str) -> Iterator[Loaded]:
    dump = DUMPS[request.param]
    root = f"/test-{os.urandom(6).hex()}"

    async def load() -> None:
        client = await connect(zookeeper + root)
        await client.ensure("/")
        await write_tree(client, [znode for znode in dump.znodes if not znode.ephemeral])
        await client.close()

    asyncio.run(load())
    yield Loaded(dump, zookeeper + root)
    delete_tree(zookeeper, root)


@pytest.mark.parametrize(
    ("loaded", "story"),
    [
        pytest.param(version, story, id=f"{version}-{type(story).__name__}")
        for version, dump in DUMPS.items()
        for story in STORIES
        if type(story).__name__ in dump.stories
    ],
    indirect=["loaded"],
)
async def test_messages_that_an_older_version_stored_are_read_taken_and_settled(loaded: Loaded, story: Story) -> None:
    (dump, hosts), clock = loaded, TestClock()
    old = await connect(hosts)
    try:
        await write_tree(old, [znode for znode in dump.znodes if znode.ephemeral])
        async with zq.connect(hosts, clock=clock, janitor=False) as session:
            await story.found(Now(session, dump.known, clock, old.close))
            if story.queues:
                await session.admin.clean(*story.queues)
    finally:
        await old.close()
    assert await left(hosts, story.queues) == []


def test_a_program_that_does_not_know_bundles_names_their_queues_in_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    (stored,) = [znode.data for znode in DUMPS["v1-bundles"].znodes if znode.path == "/zms/bundled"]
    assert StoredConfig.decode(stored).bundled
    monkeypatch.setattr(configuration, "_KNOWN", frozenset[str]())
    with pytest.raises(MalformedError, match=r"requires 'bundles'.*this version does not know"):
        StoredConfig.decode(stored)


async def left(hosts: str, queues: tuple[str, ...]) -> list[str]:
    """Return the znodes that belong to a message."""
    client = await connect(hosts)
    try:
        znodes = await read_tree(client, [f"/zms/{queue}" for queue in queues])
    finally:
        await client.close()
    return [znode.path for znode in znodes if MESSAGE.fullmatch(znode.path)]
