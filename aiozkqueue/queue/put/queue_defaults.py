"""What a queue's configuration asks of every put: the key by which it collapses, a lifetime, its node."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aiozkqueue.layout import decode, key_hash, payload_hash
from aiozkqueue.queue.commit.put_plan import PutPlan

from .affinity import chooser, with_node
from .ttl import TtlPlace, lasting, with_field

if TYPE_CHECKING:
    from aiozkqueue.layout import Header
    from aiozkqueue.queue.commit.puts import Put
    from aiozkqueue.queue.runtime.clock import ServerClock
    from aiozkqueue.queue.state.queue_state import QueueState


class QueueDefaults:
    """Shapes the puts to one queue, while its configuration asks for it."""

    def __init__(self, store: QueueState, clock: ServerClock, node: str) -> None:
        self._store = store
        self._clock = clock
        self._node = node

    def follow(self) -> None:
        """Take note of the queue's configuration."""
        config = self._store.config
        self._store.takes = chooser(config, self._node)
        shaped = config.collapse or config.lifetime is not None or self._store.takes is not None
        self._store.transform_put = self._transform_put if shaped else None

    def _transform_put(self, put: Put) -> Put:
        """Return the put as the configuration wants it; what has been shaped already stays as it is."""
        config = self._store.config
        if config.affinity == "producer":
            put = put._replace(prefix=with_node(put.prefix, self._node))
        if config.collapse:
            put = self._with_key(put)
        if config.lifetime is not None and not _lasting_already(put):
            put = put._replace(plan=lasting(put.plan, self._store, self._clock, config.lifetime))
        return put

    def _with_key(self, put: Put) -> Put:
        """Give it a key if it has none, and let it go to the lane of that key."""
        key = put.prefix.partition("-k")[2].partition("-")[0]
        if not key:
            key = payload_hash(decode(put.data)[1])
            put = put._replace(prefix=with_field(put.prefix, f"k{key}"))
        plan = put.plan or PutPlan()
        if plan.place is None:
            put = put._replace(plan=replace(plan, place=KeyLane(self._store, key)))
        elif isinstance(plan.place, TtlPlace) and plan.place.within is None:
            plan.place.within = KeyLane(self._store, key)
        return put


def _lasting_already(put: Put) -> bool:
    return "-e" in put.prefix or (put.plan is not None and isinstance(put.plan.place, TtlPlace))


class KeyLane:
    """The place of an item whose like are to be in one lane: what is listed together collapses."""

    __slots__ = ("_key", "_store")

    ready = True

    def __init__(self, store: QueueState, key: str) -> None:
        self._store = store
        self._key = key

    async def prepare(self) -> None:
        """There is nothing to find out."""

    def path(self, prefix: str) -> str:
        """Return the path in the lane of its key."""
        return f"{self._store.lanes.of_key(self._key)}/{prefix}"


def key_of(header: Header | None, data: bytes) -> str:
    """Return the hash of a message's key; of its payload where it has none."""
    return payload_hash(decode(data)[1]) if header is None or header.key is None else key_hash(header.key)
