"""The definition of a story, and functions that several stories need."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol, TypeVar

from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import aiozkqueue as zq
    from aiozkqueue.testing import TestClock

T = TypeVar("T")

#: A date after every run of these tests.
FAR = datetime(2060, 1, 1, tzinfo=UTC)
#: The longest lease and the longest lifetime: thirty years.
LONG = 10**9
WITHIN = 30.0


@dataclass
class Old:
    """The program of the dumped version."""

    session: zq.QueueSession
    known: dict[str, str] = field(default_factory=dict)
    open: AsyncExitStack = field(default_factory=AsyncExitStack)
    """The resources that stay open until the dump is complete."""


@dataclass
class Now:
    """A program of the current version on the data of the old one. The old program lives until `gone` is called."""

    session: zq.QueueSession
    known: dict[str, str]
    clock: TestClock
    gone: Callable[[], Awaitable[None]]


class Story(Protocol):
    """The story of a feature."""

    queues: tuple[str, ...]
    """The queues that are empty at the end."""

    async def made(self, old: Old) -> None: ...
    async def found(self, now: Now) -> None: ...


async def take(session: zq.QueueSession, queue: zq.Queue[T], count: int = 1) -> list[zq.Message[T]]:
    """Take and commit this many messages, one after another."""
    taken: list[zq.Message[T]] = []
    for _ in range(count):
        async with session.transaction() as tx:
            message = await tx.take(queue, timeout=WITHIN)
            assert message is not None, f"{queue}: {len(taken)} of {count}"
            taken.append(message)
    return taken


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WITHIN):
        while not await condition():  # noqa: ASYNC110 - other clients make it true
            await asyncio.sleep(0.02)


class Parcel(BaseModel):
    order: int
