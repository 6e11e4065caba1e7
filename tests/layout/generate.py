"""Makes a dump: ``python -m tests.layout.generate v2``, once, with the code that first stores that version.

Of all stories, or of those that are named behind it. A dump that is there is not made again: later code would not store
the same.
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
    """These stories, on an empty server."""
    socket.gethostname = lambda: "old-host"  # whose machine it was is nobody's affair
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
    """Write one file."""
    target = FIXTURES / f"{sys.argv[1]}.json"
    if target.exists():
        sys.exit(f"{target} is there already, and stays as it is")
    stories = [story for story in STORIES if type(story).__name__ in sys.argv[2:] or not sys.argv[2:]]
    with EmbeddedZooKeeper() as server:
        dump = asyncio.run(written(server.hosts, stories))
    target.write_text(dump.model_dump_json(indent=1, exclude_defaults=True) + "\n")


if __name__ == "__main__":
    main()
