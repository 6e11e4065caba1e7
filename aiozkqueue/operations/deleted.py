"""Removes the remains of deleted queues: data of an interrupted deletion, their rates, and the znodes of versions."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from aiozkqueue.layout import MalformedError, is_deleted, name_at
from aiozkqueue.layout.rates import RatePaths, RateRecord
from aiozkqueue.queue.state.znodes import clear
from aiozkqueue.zookeeper import (
    Delete,
    MultiError,
    NoAuthError,
    NoNodeError,
    SetData,
    apply_until_answered,
    below,
    read_separately,
    until_answered,
)

if TYPE_CHECKING:
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.zookeeper import ZooKeeper

#: How long the removal of a deleted queue is left to the call that began it, milliseconds.
LEFT: Final = 60_000
#: How long the znode of a deleted queue stays, milliseconds. No session may know the queue for longer without using it.
KEPT: Final = 7 * 24 * 3_600_000


async def sweep_deleted(runtime: Runtime, moment: int) -> int:
    """Finish the removal of deleted queues, and remove znodes that have been kept for long; return their number.

    ``moment`` is ZooKeeper's time, ms. Queues that this user may not access are left.
    """
    zookeeper, removed = runtime.zookeeper, 0
    bases = [f"{runtime.root}/{name}" for name in await below(zookeeper, runtime.root) if not name.startswith(".")]
    for base, found in zip(bases, await read_separately(zookeeper, [[base] for base in bases]), strict=True):
        node = None if isinstance(found, NoAuthError) else found[0]
        if node is None or not is_deleted(node.data):
            continue
        stat = await zookeeper.exists(base)
        if stat is None or stat.version != node.version:
            continue
        if stat.num_children and stat.mtime + LEFT < moment:
            await remove_below(zookeeper, base, stat.version)
        elif stat.mtime + KEPT < moment:
            with suppress(MultiError):  # it was created again, or another session was faster
                await apply_until_answered(zookeeper, [Delete(base, stat.version)])
                removed += 1
            await forget_rate(runtime, name_at(base), moment)
    return removed


async def forget_rate(runtime: Runtime, queue: str, moment: int) -> None:
    """Remove the rate that has the name of a deleted queue, unless slots on its timeline are still to come.

    ``moment`` is ZooKeeper's time, ms, or earlier. Listeners of other queues may share the rate. They lose nothing: a
    timeline that has ended begins at the next lease, as a new one does, and a lease meanwhile has changed the version.
    A new timeline counts its versions from 0, so a deletion also writes the folder, whose version each lease asserts.
    """
    zookeeper, paths = runtime.zookeeper, RatePaths(runtime.root)
    path = paths.rate(queue)
    try:
        data, stat = await zookeeper.read(path)
        ended = RateRecord.decode(data).end(stat.mtime)
    except (NoNodeError, NoAuthError, MalformedError):
        return
    if ended <= moment * 1000:
        with suppress(MultiError):  # the write of the folder refuses leases that were computed before
            await apply_until_answered(zookeeper, [Delete(path, stat.version), SetData(paths.base, b"")])


async def remove_below(zookeeper: ZooKeeper, base: str, version: int) -> None:
    """Remove the remaining data below a deleted queue's znode, unless the queue has been created again since.

    Raises: NoAuthError.
    """
    try:
        await until_answered(zookeeper, lambda: clear(zookeeper, base, version))
    except MultiError as error:
        if isinstance(error.error, NoAuthError):
            raise error.error from error
        if error.index:  # otherwise the first operation found another version, or no queue
            raise
