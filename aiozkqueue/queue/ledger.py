"""A ledger: messages held for a stream that may ask for the same batch again, in whatever process it runs.

``ledger/<group>`` is written by whoever takes the ledger over: its version is the *epoch*, and every change below
asserts it, so that a process that was taken for dead and comes back can change nothing. Below it, ``batch-<n>`` is a
manifest: a batch that is always the same, with pages that name its items. A page is made in one multi with the locks
of its items, which are persistent and have no end; a manifest whose data is empty is not sealed yet, and is gone on
with. Acknowledging first marks the manifest as done. It then removes items, locks and pages, a few pages at a time.
No batch is returned once it is marked, because part of it may be gone: the next process finishes the removal instead.

The group's znode is never removed: its version, and the numbers of manifests that it counts, must never begin anew.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.errors import ClaimLostError, InvalidOptionError, NotFoundError
from aiozkqueue.layout import LockRecord, id_at, parse_lock
from aiozkqueue.zookeeper import (
    Check,
    ConnectionLossError,
    Create,
    Delete,
    MultiError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
    SetData,
    below,
)

from .candidates.listings import Earliest
from .candidates.staged import is_closed
from .claims.found import burial, find, removal
from .claims.obstacles import Obstacles
from .claims.pages import Entry, Manifest, owner_of_ledger, read_page, write_page
from .commits.changes import settle
from .commits.endings import CONSUME, Ending
from .operators.admin import lanes, put_into, stat_lanes
from .operators.listing import collect_children, seen
from .tasks import several

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from aiozkqueue.zookeeper import Operation, ZooKeeperError

    from .claims.found import Found
    from .commits.changes import Change
    from .engine import Engine
    from .store import QueueStore

#: Items of a page. A server keeps its last 500 requests in its heap, with about 0.75 KiB for each operation of a multi:
#: that is 190 MiB of pages of so many items, and would be more than many a server has of pages of 1,000.
PAGE: Final = 250
#: Pages that are made, or acknowledged, at a time: the server works on one while others are on their way.
UNDER_WAY: Final = 4
#: Items of a page that others keep taking from.
SMALLEST: Final = 50
#: Messages of a batch, at the most.
MOST: Final = 100_000
#: Names kept for the next batches, where these are smaller: each listing of a deep queue stalls the server.
BACKLOG: Final = 50_000
_BATCH: Final = "batch-"


class Page(NamedTuple):
    """A page of a manifest, and how many items it names."""

    path: str
    items: int


class _RefusedError(Exception):
    """An operation of a change was refused."""

    def __init__(self, index: int, error: ZooKeeperError) -> None:
        super().__init__(index, error)
        self.index = index
        self.error = error


class _Frozen(NamedTuple):
    """What was there at a moment, ms in ZooKeeper's time: of each lane, the items before a sequence."""

    moment: int
    ends: Mapping[str, int]


class Ledger:
    """One group's ledger, taken over by the first change that is made here."""

    def __init__(self, engine: Engine, store: QueueStore, group: str) -> None:
        self._engine = engine
        self._zookeeper = engine.zookeeper
        self._store = store
        self._group = group
        self._path = f"{store.paths.ledgers}/{group}"
        self._epoch: int | None = None
        self._candidates: list[str] = []  # places, as listed
        self._again: list[Entry] = []  # those of them that were looked at since, and come first
        self._obstacles = Obstacles(store, group)
        self._frozen: _Frozen | None = None
        self._one_by_one = asyncio.Lock()  # held while a page's items, payloads and all, are read

    async def open(self) -> None:
        """Take the ledger over, unless that has been done: what ran before can change nothing from now on.

        Raises: NotFoundError, InvalidOptionError: the queue has an order, which batches do not keep.
        """
        if self._epoch is not None:
            return
        store = self._store
        if not await store.exists():
            msg = f"there is no queue {store.name!r}; its first put makes it"
            raise NotFoundError(msg)
        await self._reopen()
        await self._take_over()

    async def freeze(self) -> None:
        """From now on take only what is there now: of each lane, what was put before."""
        await self.open()
        now = await self._engine.server_clock.learned(self._store.paths.due)
        stats = await stat_lanes(self._engine, self._store)
        self._frozen = _Frozen(now, {lane: put_into(stat) for lane, stat in stats.items()})

    async def next_batch(self, after: int, limit: int | None) -> int:
        """Return the number of the batch that follows on one, which may have been made before; itself if there is none.

        ``limit`` is the most messages of one that is made now; None: all that are there.

        Raises: ClaimLostError: another has taken the ledger over; AccessDeniedError.
        """
        await self.open()
        numbers = [number for number in await self.batches() if number > after]
        if numbers and (await self._read(numbers[0])).done:
            await self.finish()
            numbers = [number for number in await self.batches() if number > after]
        if numbers and (await self._read(numbers[0])).sealed:
            return numbers[0]
        if not self._left:
            self._candidates = await self._free(_enough(limit))
        if not numbers and not self._left:
            return after
        number = numbers[0] if numbers else await self._new()
        pages = await self.pages(number, sealed=False)
        count = sum(page.items for page in pages)
        first = int(pages[-1].path.rpartition("/")[2]) + 1 if pages else 0  # one before the last may have been refused
        count += await self._fill(number, first, None if limit is None else limit - count)
        if not count:
            await self._change([Delete(self._manifest(number))], partial(self._gone, self._manifest(number)))
            return after
        await self._change([SetData(self._manifest(number), Manifest(count).encode())], self._never)
        return number

    async def batches(self) -> list[int]:
        """Return the numbers of the batches that have not been acknowledged."""
        return sorted(int(name.removeprefix(_BATCH)) for name in await below(self._zookeeper, self._path))

    async def pages(self, number: int, *, sealed: bool = True) -> list[Page]:
        """Return the pages of a batch.

        Raises: ClaimLostError: there is no such batch any more.
        """
        manifest = self._manifest(number)
        await self._zookeeper.sync(manifest)
        state = await self._read(number)
        if not state.done and (state.sealed or not sealed):
            paths = [f"{manifest}/{name}" for name in sorted(await below(self._zookeeper, manifest))]
            with suppress(NoNodeError):  # it is being acknowledged
                pages = [Page(path, len(await read_page(self._zookeeper.read, path))) for path in paths]
                if not sealed or sum(page.items for page in pages) == state.items:
                    return pages
        msg = (
            f"queue {self._store.name!r}: batch {number} of stream {self._group!r} is not there: it was "
            "acknowledged, or its ledger released. Begin anew with another checkpoint"
        )
        raise ClaimLostError(msg)

    async def _read(self, number: int) -> Manifest:
        try:
            return Manifest.decode((await self._zookeeper.read(self._manifest(number))).data)
        except NoNodeError:
            return Manifest()

    async def acknowledge(self, number: int) -> int:
        """Remove the batches up to this one, with their messages; return how many messages these were.

        Raises: ClaimLostError: another has taken the ledger over.
        """
        await self.open()
        await self._refresh()  # what each end takes along depends on it
        removed = 0
        batches = [batch for batch in await self.batches() if batch <= number]
        if not batches:
            await self._change([], self._never)  # only to hear whether it is still ours
        for batch in batches:
            state = await self._read(batch)
            if not state.done:
                done = state._replace(done=True).encode()
                await self._change([SetData(self._manifest(batch), done)], self._never)
            removed += await self._remove(batch)
        return removed

    async def finish(self) -> int:
        """Remove what is left of batches that are done; return how many messages these batches had in all.

        A process that was killed while it acknowledged leaves such batches.

        Raises: ClaimLostError: another process has taken the ledger over; AccessDeniedError.
        """
        await self._refresh()
        await self._take_over()
        finished = 0
        for batch in await self.batches():
            state = await self._read(batch)
            if not state.done:
                break  # batches are acknowledged in order
            await self._remove(batch)
            finished += state.items or 0
        return finished

    async def _remove(self, batch: int) -> int:
        manifest = self._manifest(batch)
        names = sorted(await below(self._zookeeper, manifest))
        ended = await several(UNDER_WAY, [partial(self._end_page, batch, f"{manifest}/{name}") for name in names])
        await self._change([Delete(manifest)], partial(self._gone, manifest))
        return sum(ended)

    # -- making

    async def _reopen(self) -> None:
        """Read the configuration. Raises: InvalidOptionError: the queue has an order, which batches do not keep."""
        store = self._store
        await self._refresh()
        if store.config.grouped or store.config.collapse:
            what = "keeps an order or collapses messages, which a stream would not"
            msg = f"queue {store.name!r} {what}: take from it by consumers"
            raise InvalidOptionError(msg)

    async def _refresh(self) -> None:
        self._store.stale()
        await self._store.open()

    async def _take_over(self) -> None:
        if self._epoch is None:
            await self._zookeeper.ensure(self._store.paths.ledgers)
        while self._epoch is None:
            self._epoch = await self._try_to_take_over()

    async def _try_to_take_over(self) -> int | None:
        """Write to the group's znode; return its version if that is still ours."""
        zookeeper = self._zookeeper
        about = {"client": self._engine.ids.client, **json.loads(self._engine.about or b"{}")}
        data = json.dumps({**about, "epoch": self._engine.ids.next()}).encode()
        for change in (Create(self._path, data), SetData(self._path, data)):
            try:
                await zookeeper.multi([change])
            except MultiError as refusal:
                if not isinstance(refusal.error, NodeExistsError | NoNodeError):
                    raise refusal.error from refusal
            except (ConnectionLossError, SessionExpiredError):
                await zookeeper.wait_connected()
            else:
                break
        try:
            node = await zookeeper.read(self._path)
        except NoNodeError:
            return None  # neither of the two was applied
        return node.stat.version if node.data == data else None

    async def _free(self, limit: int) -> list[str]:
        """List what nobody holds, the most urgent and oldest first, a lane at a time and no more than ``limit``.

        What belongs to a batch that was not complete when the locks were listed comes into a later list. One that was
        begun since is looked for among what is left: it was put last.
        """
        engine, store = self._engine, self._store
        await self._reopen()
        if store.config.paused:
            return []
        now = await engine.server_clock.learned(store.paths.due)
        moment = now if self._frozen is None else self._frozen.moment
        locked = await self._locked()
        free: list[str] = []
        for lane in await lanes(engine, store):
            end = None if self._frozen is None else self._frozen.ends.get(lane, 0)
            passes = partial(self._is_free, locked=locked, moment=moment, now=now, end=end)
            first = await collect_children(engine, store, lane, partial(Earliest, limit - len(free), passes))
            lane_path = lane.removeprefix(f"{store.paths.base}/")
            names = await seen(engine, store, first.names())
            for index, name in enumerate(names):  # in place, as there may be many
                names[index] = f"{lane_path}/{name}"
            free += self._obstacles.without_sealed(names)
            if len(free) >= limit:
                break
        return free

    def _is_free(self, name: str, *, locked: Collection[str | None], moment: int, now: int, end: int | None) -> bool:
        item = self._store.parse_item(name)
        return (
            item is not None
            and (end is None or item.sequence < end)
            and item.id not in locked
            and (item.due is None or item.due <= moment)
            and (item.expires is None or item.expires > now)
            and not is_closed(name, locked)
        )

    async def _locked(self) -> set[str | None]:
        return {parse_lock(name) for name in await below(self._zookeeper, self._store.paths.locks)}

    async def _new(self) -> int:
        """Begin a manifest. A lost reply may leave one more, which is empty and taken next.

        Raises: ClaimLostError: another has taken the ledger over, and may have removed it.
        """
        before = await self.batches()
        while True:
            await self._change([Create(f"{self._path}/{_BATCH}", sequential=True)], self._made_one(len(before)))
            made = [number for number in await self.batches() if number not in before]
            if made:
                return made[0]

    def _made_one(self, before: int) -> Callable[[], Awaitable[bool]]:
        async def made() -> bool:
            return len(await self.batches()) > before

        return made

    async def _fill(self, number: int, page: int, wanted: int | None) -> int:
        """Add pages until there is nothing more, or as much as is wanted; return how many items they name."""
        count, size = 0, PAGE
        lasting = self._left  # what comes meanwhile is for the next batch
        while lasting > 0 and (wanted is None or count < wanted) and self._left:
            room = lasting if wanted is None else min(lasting, wanted - count)
            pages: dict[str, list[Entry]] = {}
            while room > 0 and len(pages) < UNDER_WAY and self._left:
                chosen = self._choose(min(size, room))
                pages[f"{self._manifest(number)}/{page:06d}"] = chosen
                page, room = page + 1, room - len(chosen)
            adding = [partial(self._add_page, number, path, chosen) for path, chosen in pages.items()]
            made = await several(UNDER_WAY, adding)
            lasting -= sum(map(len, pages.values()))
            count += sum(one for one in made if one is not None)
            refused = [chosen for chosen, one in zip(pages.values(), made, strict=True) if one is None]
            if not refused:
                size = min(PAGE, 2 * size)
                continue
            await self._reopen()
            if self._store.config.paused:
                self._candidates, self._again = [], []
                break
            free = await self._still_free([entry for chosen in refused for entry in chosen])
            self._again = [*free, *self._again]
            lasting += len(free)
            size = max(SMALLEST, size // 2)
        return count

    @property
    def _left(self) -> int:
        return len(self._again) + len(self._candidates)

    def _choose(self, most: int) -> list[Entry]:
        chosen = self._again[:most]
        del self._again[:most]
        more = most - len(chosen)
        chosen += map(Entry, self._candidates[:more])
        del self._candidates[:more]
        return chosen

    async def _add_page(self, number: int, path: str, entries: Sequence[Entry]) -> int | None:
        """Make a page and lock its items; return how many it names, or None where one of them is not free any more."""
        paths = self._store.paths
        lock = self._lock_of(number)
        operations: list[Operation] = [Create(path, write_page(entries)), self._store.check()]
        for place, version in entries:
            operations.append(Check(paths.at(place), version))
            operations.append(Create(paths.lock(id_at(place)), lock))
        try:
            await self._change(operations, lambda: self._there(path))
        except _RefusedError as refusal:
            return None if refusal.index else len(await self._entries(path))  # a page of ours whose reply was lost
        return len(entries)

    async def _still_free(self, entries: Sequence[Entry]) -> list[Entry]:
        paths = self._store.paths
        stats = await asyncio.gather(*(self._obstacles.look(self._zookeeper, paths.at(one.place)) for one in entries))
        locked = await self._locked()
        return [
            Entry(one.place, stat.version)
            for one, stat in zip(entries, stats, strict=True)
            if stat is not None and id_at(one.place) not in locked
        ]

    # -- acknowledging

    async def _end_page(self, number: int, path: str) -> int:
        """Remove a page with its items; whatever of it is not ours any more is left."""
        entries = await self._entries(path)
        paths = self._store.paths
        simple = not self._store.attendants and not self._store.config.counts
        while True:
            reasons = await self._reasons(path)
            plain = [
                one
                for one in entries
                if simple and one.version == 0 and "/item-i" in one.place and _id(one) not in reasons
            ]
            if len(plain) < len(entries):
                plainly = set(plain)
                await self._end_one_by_one(number, [one for one in entries if one not in plainly], reasons)
            for message_id in reasons:
                await self._change([Delete(f"{path}/{message_id}")], partial(self._gone, f"{path}/{message_id}"))
            operations: list[Operation] = [Delete(path)]
            for one in plain:
                operations.append(Delete(paths.at(one.place), one.version))
                operations.append(Delete(paths.lock(_id(one))))
            try:
                await self._change(operations, partial(self._gone, path))
            except _RefusedError as refusal:
                if refusal.index == 0 and isinstance(refusal.error, NotEmptyError):
                    continue  # a task that nobody waits for any more has marked a message since
                if refusal.index:
                    await self._end_one_by_one(number, plain, {})
                    await self._change([Delete(path)], partial(self._gone, path))
            return len(entries)

    async def _entries(self, page: str) -> list[Entry]:
        """Read a page of ours. Raises: ClaimLostError: whoever has taken the ledger over was quicker to remove it."""
        try:
            return await read_page(self._zookeeper.read, page)
        except NoNodeError:
            await self._change([], self._never)
            return []

    async def _reasons(self, page: str) -> dict[str, str]:
        """Read which messages of a page are to be dead letters, and why."""
        names = await below(self._zookeeper, page)
        nodes = await self._zookeeper.read_many([f"{page}/{name}" for name in names]) if names else []
        return {
            name: node.data.decode("utf-8", "replace")
            for name, node in zip(names, nodes, strict=True)
            if node is not None
        }

    async def _end_one_by_one(self, number: int, entries: Sequence[Entry], reasons: Mapping[str, str]) -> None:
        """End items that have more to them: attempts, keys, a history, a reason; or that somebody has forced open."""
        ours = LockRecord.decode(self._lock_of(number)).claim
        places = [one.place for one in entries]
        while places:
            await self._zookeeper.sync(self._path)
            async with self._one_by_one:
                found = await find(self._engine, self._store, places)
                held = [one for one in found if one.lock is not None and LockRecord.decode(one.lock.data).claim == ours]
                changes = [self._ending(one, reasons.get(one.id)) for one in held]
                fenced = [one._replace(operations=[self._check(), *one.operations]) for one in changes]
                settled = await settle(self._engine, fenced)
            for one, change in zip(held, settled, strict=True):
                if change.obstacle is not None:
                    self._obstacles.tell_kept(one, change.obstacle)
            places = [
                one.place for one, change in zip(held, settled, strict=True) if change.left and change.obstacle is None
            ]
            if places:
                await self._change([], self._never)  # is it still ours?

    def _ending(self, one: Found, reason: str | None) -> Change:
        if reason is None:
            return removal(self._engine, self._store, one, CONSUME)
        ending = Ending("dead", reason=f"stream {self._group!r}: the payload does not decode: {reason}")
        return burial(self._engine, self._store, one, ending)

    # -- changes

    def _manifest(self, number: int) -> str:
        return f"{self._path}/{_BATCH}{number:010d}"

    def _lock_of(self, number: int) -> bytes:
        return LockRecord(f"{self._group}/{number}", owner_of_ledger(self._group)).encode()

    def _check(self) -> Operation:
        assert self._epoch is not None  # noqa: S101 - `open` comes first
        return Check(self._path, self._epoch)

    async def _change(self, operations: Sequence[Operation], done: Callable[[], Awaitable[bool]]) -> None:
        """Apply a change of the epoch; ``done`` tells whether it has been applied, when a reply was lost.

        Raises: ClaimLostError; _RefusedError: one of the operations was refused.
        """
        in_doubt = False
        while True:
            try:
                await self._zookeeper.multi([self._check(), *operations])
            except MultiError as refusal:
                if refusal.index == 0:
                    msg = (
                        f"queue {self._store.name!r}: the ledger of stream {self._group!r} has been taken over or "
                        "released; this process must not go on"
                    )
                    raise ClaimLostError(msg) from refusal
                if in_doubt and await done():
                    return
                raise _RefusedError(refusal.index - 1, refusal.error) from refusal
            except (ConnectionLossError, SessionExpiredError):
                in_doubt = True
                await self._zookeeper.wait_connected()
            else:
                return

    async def _there(self, path: str) -> bool:
        return await self._zookeeper.exists(path) is not None

    async def _gone(self, path: str) -> bool:
        return await self._zookeeper.exists(path) is None

    async def _never(self) -> bool:
        return False


def _enough(limit: int | None) -> int:
    """How many names to keep: those of one batch, or of several small ones, all of them full."""
    if limit is None or limit >= MOST:
        return MOST
    return max(limit, BACKLOG - BACKLOG % limit)


def _id(entry: Entry) -> str:
    return id_at(entry.place)
