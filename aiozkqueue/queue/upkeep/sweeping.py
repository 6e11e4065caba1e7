"""Messages whose life has ended and that nobody takes: found by their names, and ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.layout import ItemName
from aiozkqueue.queue.claims.found import burial, find_pages, removal
from aiozkqueue.queue.commits.changes import apply
from aiozkqueue.queue.operators.admin import lanes, list_children, seen
from aiozkqueue.queue.puts.lifetime import at_its_end

if TYPE_CHECKING:
    from aiozkqueue.queue.claims.found import Found
    from aiozkqueue.queue.commits.changes import Change
    from aiozkqueue.queue.engine import Engine
    from aiozkqueue.queue.store import QueueStore


async def sweep_expired(engine: Engine, store: QueueStore, *, limit: int = 10_000) -> int:
    """End the messages of a queue whose life has ended and that nobody holds, ``limit`` at the most; return how many.

    Each is removed, or made a dead letter, by a multi that fails if anybody takes it meanwhile: by how many processes,
    and how often, this is done makes no difference.

    Raises: AccessDeniedError, OutcomeUnknownError, PayloadError, SessionClosedError.
    """
    await store.open()
    now = await engine.server_clock.learned(store.paths.due)
    ended: dict[str, int] = {}
    for lane in await lanes(engine, store):
        for text in await seen(engine, store, await list_children(engine, store, lane)):
            name = ItemName.parse(text) if "-e" in text else None
            if name is not None and name.expires is not None and name.expires <= now and len(ended) < limit:
                ended[f"{lane.removeprefix(f'{store.paths.base}/')}/{text}"] = name.expires
    swept = 0
    async for page in find_pages(engine, store, list(ended)):
        changes = [_sweeping(engine, store, one, ended[one.place]) for one in page if not one.held(now)]
        swept += sum(await apply(engine, changes))
    return swept


def _sweeping(engine: Engine, store: QueueStore, found: Found, end: int) -> Change:
    ending = at_its_end(store.config, end)
    return (burial if ending.kind == "dead" else removal)(engine, store, found, ending)
