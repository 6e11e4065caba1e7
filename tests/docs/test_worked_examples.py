"""The worked examples of the protocols show the requests that sessions actually send."""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.layout import key_hash
from aiozkqueue.queue.candidates.partition import Partition
from aiozkqueue.session.internals import core_of
from aiozkqueue.zookeeper import Create

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from aiozkqueue.zookeeper import Operation

_BLOCK = re.compile(r"^```text\n(.*?)^```", re.DOTALL | re.MULTILINE)
#: The blocks of each page.
SHOWN = {
    page.name: _BLOCK.findall(page.read_text()) for page in (Path(__file__).parents[2] / "docs/design").rglob("*.md")
}
_TIME = re.compile(r"\b1\d{12}\b")

pytestmark = pytest.mark.timeout(120)


class Recorder:
    """Records the multis of a session, with short names for the ids of messages and for other ids as they appear."""

    def __init__(self, session: zq.QueueSession, root: str, *further_names: str) -> None:
        self._root = root
        self._client = core_of(session).ids.client
        self._id = re.compile(self._client + "[0-9A-Za-z]{6}")
        self._multis: list[list[Operation]] = []
        self._names: dict[str, str] = {}
        self._unused = list(further_names)
        zookeeper: Any = core_of(session).zookeeper  # Any: its methods are replaced
        self._multi = zookeeper.multi
        zookeeper.multi = self._send

    def name(self, ids: Sequence[str], names: str) -> None:
        """Give one-letter names to messages."""
        self._names.update(zip(ids, names, strict=True))

    def step(self) -> str:
        """Return the multis since the last call, separated by empty lines."""
        multis, self._multis = self._multis, []
        return "\n".join("".join(f"{self._line(operation)}\n" for operation in multi) for multi in multis)

    def _send(self, operations: Sequence[Operation], **options: Any) -> Any:
        self._multis.append(list(operations))
        return self._multi(operations, **options)

    def _line(self, operation: Operation) -> str:
        action = type(operation).__name__.lower().removesuffix("data")
        version, data = getattr(operation, "version", -1), getattr(operation, "data", b"")
        words = [
            f"{action:6}",
            operation.path.removeprefix(f"{self._root}/"),
            f"v{version}" if version >= 0 else "",
            "ephemeral" if isinstance(operation, Create) and operation.ephemeral else "",
            data.decode() if data.startswith(b"{") else "",
        ]
        line = _TIME.sub("T", " ".join(filter(None, words))).replace(key_hash("x"), "X")
        return self._id.sub(lambda found: self._named(found[0]), line).replace(self._client, "me")

    def _named(self, text: str) -> str:
        if text not in self._names:
            self._names[text] = self._unused.pop(0)
        return self._names[text]


async def deliver(jobs: zq.Queue[bytes], recorder: Recorder, delays: Sequence[float | None]) -> AsyncIterator[str]:
    """Settle deliveries, and roll back those with a delay; return the requests of each claim and each settlement."""
    settled = count()
    async with jobs.consume(settle="explicit", prefetch=4) as deliveries:
        async for delivery in deliveries:
            if claimed := recorder.step():
                yield claimed
            number = next(settled)
            delay = delays[number]
            await (delivery.commit() if delay is None else delivery.rollback(delay=delay))
            yield recorder.step()
            if number == len(delays) - 1:
                return


async def test_a_bundle_of_four_messages(zookeeper: str, queue_root: str) -> None:
    async with zq.connect(zookeeper, root=queue_root, janitor=False, session_timeout=60) as session:
        jobs = session.queue("jobs")
        await jobs.configure(zq.QueueConfig(bundle=4))
        await jobs.put(b"before")  # this put and its take create the znodes that a session needs once
        async with session.transaction() as tx:
            await tx.take(jobs)
        recorder = Recorder(session, queue_root, "B", "claim")
        recorder.name(await jobs.put_many([b"a", b"b", b"c", b"d"]), "abcd")
        steps = [recorder.step()]
        steps += [step async for step in deliver(jobs, recorder, [None, 60, 0, None, None])]
    assert steps == SHOWN["bundle.md"]


async def test_three_messages_of_a_group(zookeeper: str, queue_root: str) -> None:
    async with zq.connect(zookeeper, root=queue_root, janitor=False, session_timeout=60) as session:
        jobs = session.queue("jobs")
        await jobs.put(b"before", group="x")
        async with session.transaction() as tx:
            await tx.take(jobs)
        recorder = Recorder(session, queue_root, "claim", "claim2")
        recorder.name([await jobs.put(body, group="x") for body in (b"a", b"b", b"c")], "abc")
        steps = [recorder.step()]
        steps += [step async for step in deliver(jobs, recorder, [None, 0.5, None, None])]
    assert steps == SHOWN["group.md"]


def test_six_messages_for_four_consumers() -> None:
    consumers = {name: Partition.among(name, "ABCD", queue="jobs") for name in "ABCD"}
    rows = ["message  owner   second    third     last"]
    for number in range(6):
        item = f"item-i-{number:010d}"
        waits = {name: share.steal_delay(item, share.offset("items")) for name, share in consumers.items()}
        owner, *followers = sorted(waits, key=waits.__getitem__)
        rows.append(
            f"{number}        {owner}" + "".join(f"       {name} {1000 * waits[name]:.0f}" for name in followers)
        )
    assert SHOWN["08-deep-queues.md"] == ["\n".join(rows) + "\n"]
