"""Dumps znodes, and restores them unchanged on another server: data, versions, counters, owners and their order."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING

from pydantic import BaseModel

from aiozkqueue.zookeeper import Create, Delete, SetData

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiozkqueue.zookeeper import Node, Stat, ZooKeeperClient

#: The owner in the stat of a container, instead of a session.
_CONTAINER = -(1 << 63)


class Znode(BaseModel):
    """One znode."""

    path: str
    text: str | None = None
    """The data, if it is UTF-8."""
    base64: str | None = None
    """The data, if it is not UTF-8."""
    version: int = 0
    counter: int = 0
    """The number of children ever created, which is part of the name of the next sequential child."""
    ephemeral: bool = False
    container: bool = False

    @property
    def data(self) -> bytes:
        return base64.b64decode(self.base64) if self.base64 is not None else (self.text or "").encode()


class Dump(BaseModel):
    """All znodes of one version's program, and the values that the program received."""

    made_by: str
    """The version of the package."""
    stories: list[str]
    """The names of the stories in the dump."""
    known: dict[str, str]
    """Values that the program received, such as ids and tokens."""
    znodes: list[Znode]
    """In the order of their creation."""


async def read_tree(client: ZooKeeperClient, tops: Iterable[str]) -> list[Znode]:
    """Return the znodes at and below these paths."""
    found: list[tuple[int, Znode]] = []
    waiting = [*tops]
    while waiting:
        path = waiting.pop()
        node = await client.read(path)
        waiting += [f"{path}/{name}" for name in await client.children(path)]
        found.append((node.stat.czxid, _written(path, node)))
    # The znodes that one multi created have the same zxid. Parents have shorter paths.
    return [znode for _, znode in sorted(found, key=lambda entry: (entry[0], len(entry[1].path), entry[1].path))]


def _written(path: str, node: Node) -> Znode:
    stat = node.stat
    znode = Znode(path=path, version=stat.version, counter=_created(stat))
    znode.container = stat.ephemeral_owner == _CONTAINER
    znode.ephemeral = bool(stat.ephemeral_owner) and not znode.container
    try:
        znode.text = node.data.decode()
    except UnicodeDecodeError:
        znode.base64 = base64.b64encode(node.data).decode()
    return znode


async def write_tree(client: ZooKeeperClient, znodes: list[Znode]) -> None:
    """Create the znodes on a server. Ephemeral znodes belong to the client and end with its session."""
    # The server applies requests of one session in order, so it is not necessary to wait for each.
    await asyncio.gather(*[_create(client, znode) for znode in znodes])
    await asyncio.gather(*[_count_up(client, znode) for znode in znodes])


async def _create(client: ZooKeeperClient, znode: Znode) -> None:
    create = Create(znode.path, znode.data, ephemeral=znode.ephemeral, container=znode.container)
    await client.multi([create, *[SetData(znode.path, znode.data)] * znode.version])


async def _count_up(client: ZooKeeperClient, znode: Znode) -> None:
    """Create and delete as many children as the dumped znode had."""
    passing = f"{znode.path}/passing"
    missing = znode.counter - _created((await client.read(znode.path)).stat)
    await client.multi([Create(passing), Delete(passing)] * max(0, missing))


def _created(stat: Stat) -> int:
    """Return the number of children ever created. Each creation and each deletion changed the counter."""
    return (stat.cversion + stat.num_children) // 2
