"""Makes the dump of a version, with the code that first stores it: ``python -m tests.layout.generate v2``.

The dump has all stories, or those that are named after the version. An existing dump is not made again, because later
code would store other data.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import aiozkqueue as zq
from aiozkqueue.testing import EmbeddedZooKeeper
from aiozkqueue.zookeeper import connect

from .stories import STORIES, Old, Story
from .trees import Dump, read_tree

FIXTURES = Path(__file__).parent / "fixtures"
VERSION = "0.1.0"


async def written(hosts: str, stories: list[Story]) -> Dump:
    """Return the dump of these stories from an empty server."""
    socket.gethostname = lambda: "old-host"  # the name of this machine is private
    async with zq.connect(hosts, janitor=False) as session:
        old = Old(session)
        async with old.open:
            for story in stories:
                await story.made(old)
            client = await connect(hosts)
            try:
                tops = [f"/{name}" for name in await client.children("/") if name != "zookeeper"]
                names = [type(story).__name__ for story in stories]
                return Dump(made_by=VERSION, stories=names, known=old.known, znodes=await read_tree(client, tops))
            finally:
                await client.close()


def main() -> None:
    """Write the file."""
    target = FIXTURES / f"{sys.argv[1]}.json"
    if target.exists():
        sys.exit(f"{target} is there already, and stays as it is")
    stories = [story for story in STORIES if type(story).__name__ in sys.argv[2:] or not sys.argv[2:]]
    with EmbeddedZooKeeper() as server:
        dump = asyncio.run(written(server.hosts, stories))
    target.write_text(dump.model_dump_json(indent=1, exclude_defaults=True) + "\n")


if __name__ == "__main__":
    main()
