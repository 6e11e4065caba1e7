"""The resources that a process and a server use, to compare before and after much work."""

from __future__ import annotations

import asyncio
import gc
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from aiozkqueue.testing.node import four_letters

if TYPE_CHECKING:
    from tests.observer import Observer

_FOLDERS = ("locks", "meta", "due", "consumers")


@dataclass(frozen=True)
class Held:
    """Counts that must be the same before and after."""

    tasks: int
    sockets: int
    watches: int
    connections: int
    sessions: int
    znodes: dict[str, int]
    """The number of znodes in each folder that is not empty; for ``.clients``, the number of clients with slots."""


@dataclass(frozen=True)
class Memory:
    """The blocks that Python has allocated, and the resident memory in bytes."""

    blocks: int
    resident: int


async def held(view: Observer, hosts: str, root: str) -> Held:
    """Count the resources of this process and of the server, and the znodes below the root."""
    port = int(hosts.rpartition(":")[2])
    watches, mntr = await asyncio.to_thread(lambda: (four_letters(port, "wchs"), four_letters(port, "mntr")))
    znodes: dict[str, int] = {}
    for queue in await view.children(root):
        for folder in _FOLDERS:
            znodes[f"{queue}/{folder}"] = len(await view.children(f"{root}/{queue}/{folder}"))
    znodes[".clients"] = len(await view.children(f"{root}/.clients"))
    return Held(
        tasks=len(asyncio.all_tasks()),
        sockets=await asyncio.to_thread(_sockets),
        watches=_number(r"Total watches:(\d+)", watches),
        connections=_number(r"zk_num_alive_connections\t(\d+)", mntr),
        sessions=_number(r"zk_global_sessions\t(\d+)", mntr),
        znodes={folder: count for folder, count in znodes.items() if count},
    )


async def memory() -> Memory:
    """Return the memory in use after a garbage collection.

    Tracing the blocks, instead of counting, would slow the work down.
    """
    return await asyncio.to_thread(_memory)


def _memory() -> Memory:
    gc.collect()
    return Memory(sys.getallocatedblocks(), psutil.Process().memory_info().rss)


def _sockets() -> int:
    return len(psutil.Process().net_connections("tcp"))


def _number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    assert match is not None, text
    return int(match[1])
