"""The outcome of a fault, read from the server by an independent client."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiozkqueue.testing import Opcode, Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.observer import Observer

#: The type with which the first operation of a multi begins on the wire.
_CREATE = (1).to_bytes(4, "big")


class Account:
    """The contents below a root, by queue."""

    def __init__(self, view: Observer, root: str) -> None:
        self.view = view
        self.root = root

    def path(self, queue: str, *below: str) -> str:
        return "/".join((self.root, queue, *below))

    async def bodies(self, queue: str, folder: str = "items") -> list[bytes]:
        """The payloads of a queue, or of its dead letters with ``folder="dlq"``, in the order of their puts."""
        tree = await self.view.tree(self.path(queue, folder))
        names = sorted((name for name in tree if "/item-" in name), key=lambda name: name.rpartition("-")[2])
        return [tree[name] for name in names]

    async def locks(self, queue: str) -> list[str]:
        return await self.view.children(self.path(queue, "locks"))

    async def attempts(self, queue: str) -> list[bytes]:
        """The attempt records of a queue."""
        tree = await self.view.tree(self.path(queue, "meta"))
        return [data for path, data in tree.items() if "/meta-" in path]

    async def unlocked(self, queue: str, within: float = 30.0) -> None:
        """Wait until no lock is left on a queue. Raises: AssertionError with the locks that are left."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within
        while locks := await self.locks(queue):
            assert loop.time() < deadline, f"locks left on {queue}: {locks}"
            await asyncio.sleep(0.005)


def multi_of(*parts: bytes, without: bytes | None = None) -> Callable[[Request], bool]:
    """Match a multi whose bytes contain all these parts."""

    def match(request: Request) -> bool:
        return (
            request.opcode == Opcode.MULTI
            and all(part in request.body for part in parts)
            and (without is None or without not in request.body)
        )

    return match


#: The requests of the protocols, recognised by their bytes.
CLAIM = multi_of(b"/locks/lock-", without=b"/slot-")
SETTLE = multi_of(b"/slot-", b"/locks/lock-")
PUT = multi_of(b"/slot-", b"/items/item-i")
ATTEMPT = multi_of(b"/slot-", b"/meta/", without=b"/locks/")
BACKOFF = multi_of(b"/slot-", b"/due/")
REJECT = multi_of(b"/slot-", b"/dlq/")
REGISTRATION = multi_of(b"/consumers/")


def slot_creation(request: Request) -> bool:
    """Match the multi that creates a commit slot."""
    return request.opcode == Opcode.MULTI and b"/slot-" in request.body and request.body.startswith(_CREATE)
