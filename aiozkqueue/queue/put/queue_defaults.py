"""The defaults that a queue's configuration adds to every put: a compaction key, a lifetime, a node."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aiozkqueue.layout import ItemRef, decode, has_field, item_field, key_hash, payload_hash, with_field
from aiozkqueue.layout.compaction import ASKS, PUT_BEFORE
from aiozkqueue.layout.replies import asks_for_reply
from aiozkqueue.queue.commit.put_plan import PutPlan

from .affinity import chooser, with_node
from .delay import DelayedPlace
from .ttl import TtlPlace, with_lifetime

if TYPE_CHECKING:
    from aiozkqueue.layout import Header
    from aiozkqueue.queue.commit.put import Put
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.queue.state.snapshot import QueueSnapshot
    from aiozkqueue.runtime.clock import ServerClock


class QueueDefaults:
    """Adds a queue's defaults to the puts to it, while its configuration has any."""

    def __init__(self, state: QueueState, clock: ServerClock, node: str) -> None:
        self._state = state
        self._clock = clock
        self._node = node

    def configured(self, snapshot: QueueSnapshot) -> QueueSnapshot:
        """See `QueueFeature`."""
        config, accepts = snapshot.config, chooser(snapshot.config, self._node)
        transforms = config.collapse or config.lifetime is not None or accepts is not None
        return replace(snapshot, accepts=accepts, transform_put=self._transform_put if transforms else None)

    def _transform_put(self, put: Put) -> Put:
        """Return the put with the queue's defaults. A put that has them already is unchanged."""
        config = self._state.config
        put_before = None if put.plan is None else put.plan.put_before
        if config.affinity == "producer" and put_before is None:
            put = put._replace(prefix=with_node(put.prefix, self._node))
        if config.collapse:
            put = self._with_key(put)
            if put_before is not None and not has_field(put.prefix, PUT_BEFORE):
                put = put.with_field(f"{PUT_BEFORE}{put_before}")
            if asks_for_reply(put.data) and not has_field(put.prefix, ASKS):
                put = put.with_field(ASKS)
        if config.lifetime is not None and not _has_lifetime(put):
            put = put._replace(plan=with_lifetime(put.plan, self._state, self._clock, config.lifetime))
        return put

    def _with_key(self, put: Put) -> Put:
        """Add a key if the put has none, and direct it to the lane of its key."""
        key = item_field(put.prefix, "k")
        if not key:
            key = payload_hash(decode(put.data)[1])
            put = put._replace(prefix=with_field(put.prefix, f"k{key}"))
        plan = put.plan or PutPlan()
        place = plan.place.within if isinstance(plan.place, TtlPlace) else plan.place
        if isinstance(place, DelayedPlace):
            place.key = key
        elif isinstance(plan.place, TtlPlace):
            plan.place.within = place or KeyLane(self._state, key)
        elif place is None:
            put = put._replace(plan=replace(plan, place=KeyLane(self._state, key)))
        return put


def _has_lifetime(put: Put) -> bool:
    return has_field(put.prefix, "e") or (put.plan is not None and isinstance(put.plan.place, TtlPlace))


class KeyLane:
    """The place of an item with a compaction key: one lane for each key, since each listing is compacted alone."""

    __slots__ = ("_key", "_state")

    ready = True
    needs_time = False

    def __init__(self, state: QueueState, key: str) -> None:
        self._state = state
        self._key = key

    async def prepare(self) -> None:
        """Do nothing: a lane of a key is always known."""

    def path(self, prefix: str) -> str:
        """Return the path in the lane of the key."""
        return ItemRef(self._state.snapshot.lanes.of_key(self._key), prefix).path


def key_of(header: Header | None, data: bytes) -> str:
    """Return the hash of a message's key, or of its payload if it has no key."""
    return payload_hash(decode(data)[1]) if header is None or header.key is None else key_hash(header.key)
