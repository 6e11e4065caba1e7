"""Finds expired messages that no consumer takes, by their names, and ends them: all, or those whose keys are needed."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import AccessDeniedError
from aiozkqueue.layout import LockRecord, item_field, moment_field
from aiozkqueue.queue.commit.conditional import apply
from aiozkqueue.queue.commit.handle import QueueHandle
from aiozkqueue.queue.commit.unclaimed import as_configured, dead_lettering, find_pages, read_all, removal
from aiozkqueue.queue.put.ttl import at_its_end

from .listing import first_items
from .stats import lanes

if TYPE_CHECKING:
    from collections.abc import Collection

    from aiozkqueue.layout import KeyHolder
    from aiozkqueue.queue.commit.conditional import Change
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.queue.commit.unclaimed import ItemSnapshot
    from aiozkqueue.queue.state.queue_state import QueueState

#: How often an expired message that no consumer handles is to be ended until its key counts as in use.
TRIES: Final = 5
#: Seconds before the second try; each further pause is twice as long, up to the longest.
FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 1.0


class ExpiredKeys:
    """Ends expired messages that no consumer handles, and whose unique keys are to be used again, for one session."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._wanted: defaultdict[str, set[str]] = defaultdict(set)  # keys, by queue, until a listing looks for them
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # one listing of a queue at a time

    async def free(self, state: QueueState, key: str, holder: KeyHolder) -> bool:
        """End the holder of a unique key if it has expired; return whether the key may be free.

        It is not while a consumer handles the message, which was delivered in time.

        Raises: AccessDeniedError, OutcomeUnknownError, SessionClosedError.
        """
        handle, end = QueueHandle(self._runtime, state), holder.expires
        if end is None or await self._runtime.server_clock.learned(state.paths.due) < end:
            return False
        tries, pause, latest = 0, FIRST_PAUSE, self._runtime.clock.monotonic() + self._runtime.grace
        while True:
            try:
                (lock,) = await read_all(handle, [state.paths.lock(holder.id)])
                if lock is None or not LockRecord.decode(lock.data).held(self._runtime.server_clock.now()):
                    tries += 1
                    await self._sweep(handle, key)
                elif lock.stat.ctime < end:
                    return False
            except AccessDeniedError:  # this user may only put
                return False
            if await state.key_holder(key) != holder:
                return True
            if tries == TRIES or self._runtime.clock.monotonic() > latest:
                return False
            # A consumer that has claimed it too late is about to end it.
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _sweep(self, handle: QueueHandle[Runtime], key: str) -> None:
        """End the expired message of a key, together with those of other keys that are wanted by then."""
        name = handle.state.name
        self._wanted[name].add(key)
        async with self._turns[name]:
            if key in self._wanted[name]:
                await sweep_expired(handle, keys=self._wanted.pop(name))


async def sweep_expired(
    handle: QueueHandle[Runtime], *, limit: int = 10_000, keys: Collection[str] | None = None
) -> int:
    """End up to ``limit`` expired messages of a queue that no consumer holds; return how many.

    ``keys`` selects those whose keys have these hashes; None: all. Each is removed, or dead-lettered, by a multi that
    fails if a consumer takes it in the meantime, so several processes may do this at once.

    Raises: AccessDeniedError, OutcomeUnknownError, PayloadError, SessionClosedError.
    """
    if not await handle.state.open_existing():
        return 0
    now = await handle.runtime.server_clock.learned(handle.paths.due)
    ended: dict[str, int] = {}
    for entry in await first_items(handle, await lanes(handle), limit, partial(_may_have_ended, now, keys)):
        if entry.item.expires is not None and entry.item.expires <= now:
            ended[handle.paths.place_of(entry.path)] = entry.item.expires
    swept = 0
    async for page in find_pages(handle, list(ended), unreadable={}):  # `doctor` reports unreadable messages
        changes = [_sweeping(handle, snapshot, ended[snapshot.place]) for snapshot in page if not snapshot.held(now)]
        swept += sum(await apply(handle.runtime, changes))
    return swept


def _may_have_ended(now: int, keys: Collection[str] | None, text: str) -> bool:
    """Whether a name has a time of expiry that has passed, and one of the keys, if it is an item's."""
    end = moment_field(text, "e")
    return end is not None and end <= now and (keys is None or item_field(text, "k") in keys)


def _sweeping(handle: QueueHandle[Runtime], found: ItemSnapshot, end: int) -> Change:
    disposition = at_its_end(handle.config, end)
    made = (dead_lettering if disposition.kind == "dead" else removal)(handle.runtime, handle.state, found, disposition)
    return as_configured(found, made)
