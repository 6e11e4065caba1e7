"""A session's view of one queue: its paths, its configuration and the configuration's version."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aiozkqueue.arguments import plain
from aiozkqueue.errors import (
    AccessDeniedError,
    ConnectionLostError,
    InvalidOptionError,
    NotCommittedError,
    NotFoundError,
    PayloadError,
    QueueError,
)
from aiozkqueue.layout import (
    DEFAULT_BUNDLE,
    ItemName,
    KeyHolder,
    MalformedError,
    QueueConfig,
    QueuePaths,
    StoredConfig,
    candidate_id,
    is_deleted,
    is_lane,
    is_later,
    item_id,
    lane_at,
    priority_at,
    priority_of,
)
from aiozkqueue.queue.candidates.backlog import Backlog
from aiozkqueue.queue.candidates.groups import lock_id
from aiozkqueue.queue.candidates.tag_records import TagRecords
from aiozkqueue.runtime.acl_errors import access_denied, translate_denials
from aiozkqueue.zookeeper import (
    BadVersionError,
    Check,
    Create,
    MultiError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    ProtocolError,
    ServerError,
    SetData,
    ZooKeeper,
    ZooKeeperError,
    apply_until_answered,
    parent_of,
    until_answered,
)

from .bundle_setup import BundleSetup
from .config_rules import PolicyChoice, check_change, with_lane
from .generations import open_next_generation
from .lane_requests import LaneRequests
from .lanes import PutLanes
from .missing_lanes import MissingLanes
from .snapshot import QueueSnapshot, Revision
from .znodes import clear, complete, exists, folders_of, is_marked

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
    from random import Random

    from aiozkqueue.dialects import Dialect
    from aiozkqueue.layout import Policy
    from aiozkqueue.runtime.clock import ServerClock
    from aiozkqueue.zookeeper import Node, Operation, Stat, Versioned

    from .hooks import ClaimListener, EndHook
    from .snapshot import QueueFeature

log: Final = logging.getLogger(__name__)


class SessionLinks(NamedTuple):
    """The functions that the states of a session's queues share."""

    clock: ServerClock
    """ZooKeeper's time."""
    random: Random
    features: Callable[[QueueState], Iterable[QueueFeature]]
    """Returns the features of a new queue state, in the order in which they see each configuration."""
    lane_ends: Callable[[QueueState, str], None]
    """Called when an item's path shows that its lane's counter is near its end."""
    free_key: Callable[[QueueState, str, KeyHolder], Awaitable[bool]]
    """Ends the holder of a unique key if it has expired, unless a consumer handles it; whether the key may be free."""
    answers: EndHook[Any, Any]
    """Answers the callers of messages that are given up."""


class Opening(NamedTuple):
    """An attempt to open a queue, which other tasks wait for."""

    ended: asyncio.Event
    creates: bool
    """Whether the queue is created if it does not exist."""


class QueueState:
    """Paths, configuration and existence of one queue, shared by all objects of a session that use the queue."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        root: str,
        name: str,
        links: SessionLinks,
        *,
        paths: QueuePaths | None = None,
    ) -> None:
        self._links = links
        self.paths: QueuePaths = paths or QueuePaths(root, name)
        self.name: str = plain(name)
        self.dialect: Dialect | None = None
        """The layout of another program's queue; None: our own layout."""
        self.longest_id = 24
        """The maximum length of an id in a lock's name."""
        self.claim_listeners: tuple[ClaimListener[Any], ...] = ()
        """The dispatchers of its claims, one for each filter by which this session consumes."""
        self.given_up_callbacks: list[Callable[[Any], None]] = []
        """Called with the `GivenUp` of each message that this session gives up; they must not raise."""
        self.tags: TagRecords = TagRecords(zookeeper, self.paths)
        """The tags that the digests in item names stand for."""
        self.snapshot: QueueSnapshot = QueueSnapshot.of(
            self.paths.base, StoredConfig(), PutLanes(StoredConfig(), self.paths)
        )
        """The configuration last read."""
        self.forced_version: int = 0
        """The version of the locks znode at some earlier time. Each lock that is removed by force raises it."""
        self._zookeeper = zookeeper
        self._opening: Opening | None = None
        self._invalidations = 0  # a read of the configuration that began before the last one is out of date
        self.ready: bool = False
        """Whether `open` has nothing to do."""
        self._choice = PolicyChoice(name)
        self._missing_lanes = MissingLanes(zookeeper, self.paths)
        self._lane_requests = LaneRequests(name)
        self.bundle_setup: BundleSetup = BundleSetup(zookeeper, self.paths)
        self._features = tuple(links.features(self))
        self._config_listeners: list[Callable[[], None]] = []

    @property
    def config(self) -> StoredConfig:
        """The configuration last read."""
        return self.snapshot.config

    @property
    def version(self) -> int:
        """The version of the configuration last read."""
        return self.snapshot.revision.version

    @property
    def answers(self) -> EndHook[Any, Any]:
        """The feature that answers the callers of messages that are given up."""
        return self._links.answers

    @property
    def sticky(self) -> bool:
        """Whether messages are taken only by the node that put them, according to the configuration last read."""
        return self.config.affinity == "producer"

    def on_configured(self, callback: Callable[[], None]) -> None:
        """Call this after each read of the configuration."""
        self._config_listeners.append(callback)

    def request_policy(self, policy: Policy) -> None:
        """Request a policy; the next `open` stores it, or finds a conflict.

        Raises:
            InvalidOptionError: the policy is invalid.
            ConfigConflictError: this session knows of another policy that is stored, or has been requested.
        """
        if self._choice.require(policy, self.config.policy if self.ready else None):
            self.invalidate()

    def prefer_policy(self, policy: Policy) -> None:
        """Request a policy for a queue without one: the next `open` stores it, unless a policy is stored.

        Raises: InvalidOptionError: the policy is invalid.
        """
        new = self._choice.prefer(policy)
        if self.config.policy is None and (new or self.ready):
            self.invalidate()

    def create_with(self, settings: QueueConfig, entry: str | None = None) -> None:
        """Give the queue these settings, and create the znode ``entry`` with it, if this session creates it."""
        self._choice.settings, self._choice.entry = settings, entry

    async def open(self) -> None:
        """Read the configuration, and create missing znodes of the queue, and the lanes that puts found missing.

        Returns immediately if that has been done.

        Raises:
            NotFoundError: the queue does not exist. Only puts and settings create one: see `open_or_create`.
            AccessDeniedError: a znode's ACL refuses access.
            ConfigConflictError: the stored policy differs from the requested one.
            InvalidOptionError: the path is that of a queue of Curator or kazoo, or there are too many shards.
            ConnectionLostError: the server does not speak ZooKeeper's protocol.
        """
        if not self.ready:
            await self._open(creates=False)

    async def open_or_create(self) -> None:
        """Open the queue, and create it if it does not exist. Raises: as `open`, except NotFoundError."""
        if not self.ready:
            await self._open(creates=True)

    async def open_existing(self) -> bool:
        """Open the queue if it exists; return whether it does. Raises: as `open`, except NotFoundError."""
        if not await self.exists():
            return False
        with suppress(NotFoundError):
            await self.open()
        return self.ready

    async def refresh(self) -> None:
        """Have the configuration read again, as it is now.

        Refusals need it, and decisions about messages that were not found: nothing asserts the configuration there.
        """
        await self._zookeeper.sync(self.paths.base)
        self.invalidate()

    async def open_latest(self) -> bool:
        """Read the configuration as it is now; return whether the queue exists. Raises: as `open_existing`."""
        await self.refresh()
        return await self.open_existing()

    async def _open(self, *, creates: bool) -> None:
        while not self.ready:
            if self._opening is not None:
                await self._opening.ended.wait()  # all waiting tasks continue at the same moment, and share a commit
                continue
            self._opening = opening = Opening(asyncio.Event(), creates=creates)
            try:
                await self._attempt_open(opening)
            finally:
                self._opening = None
                opening.ended.set()

    async def _attempt_open(self, opening: Opening) -> None:
        """Try to open the queue once; `_open` tries again if another process has interfered."""
        try:
            await until_answered(self._zookeeper, partial(self._try_open, opening))
        except NoAuthError as error:
            raise access_denied(self.name, error) from error
        except (ProtocolError, ServerError, BadVersionError, NodeExistsError, NotEmptyError) as error:
            msg = f"queue {self.name!r}: the server's answer is invalid: {error}"
            raise ConnectionLostError(msg) from error
        except MultiError as error:
            if isinstance(error.error, NoAuthError):
                raise access_denied(self.name, error.error) from error
            if not isinstance(error.error, NodeExistsError | BadVersionError | NoNodeError):
                raise
            # Another process has created or changed a znode in the meantime: try again.

    def expect_groups(self) -> None:
        """Make the next `open` enable groups in the configuration."""
        if self.config.groups is None and not self.sticky and (self.ready or not self._choice.groups):
            self.invalidate()
        self._choice.groups = True

    def lock_id_of(self, name: str, config: StoredConfig | None = None) -> str:
        """Return the id in the lock of an item; ``config`` overrides the known one. Raises: MalformedError."""
        return lock_id(config or self.config, name)

    def item_id(self, name: str) -> str:
        """Return the id in an item's name. Raises: MalformedError: the name is not an item's."""
        return item_id(name)

    def candidate_id(self, name: str) -> str:
        """Return the id in the name of an item or a bundle. Raises: MalformedError: it is neither."""
        return candidate_id(name)

    def parse_item(self, name: str) -> ItemName | None:
        """Parse the name of an item or dead letter; return None if it is not one."""
        return ItemName.parse(name)

    def dead_letter_path(self, name: str, version: int, created: int) -> str:
        """Return the path of the dead letter for a message, given the name, version and ctime of its item."""
        del version, created
        return self.paths.dead(name)

    def wakeup_operations(self, path: str, transaction_id: str) -> Sequence[Operation]:
        """Return the operations that wake idle consumers after locks are removed, which a watch on items misses.

        ``path`` is the items' parent or lane.
        """
        del transaction_id
        return (SetData(path, b""),)

    async def distinguish(self, paths: Sequence[str], items: list[Versioned | None], generation: int) -> None:
        """Replace items just locked by ones that no later item can be mistaken for; None: gone. Ours have new names."""

    def new_backlog(self, random: Random) -> Backlog:
        """Return an empty collection of candidates for this queue."""
        return Backlog(random)

    def invalidate(self) -> None:
        """Record that the configuration has changed, or that a znode of the queue is missing."""
        self.ready = False
        self._invalidations += 1

    def admits(self, priority: int, *, scheduled: bool) -> bool:
        """Whether consumers search for items of a priority, and for scheduled items, as far as this session knows."""
        if self.config.ordered and (priority or scheduled):
            return False
        return self.ready and priority in self.snapshot.lanes and (self.config.scheduled or not scheduled)

    async def ensure_lane(self, priority: int, *, scheduled: bool) -> None:
        """Add a priority and, if ``scheduled``, delayed items to the configuration, unless it has them.

        One change admits all that concurrent calls wait for. Its multi also wakes idle consumers, and creates the znode
        for delayed items, and the lane of each new priority that has only one. Any other lane is created by its first
        put, which checks the version of the configuration: nothing is put to a place that no consumer searches.

        Raises: as `open`; InvalidOptionError: the configuration or the number of lanes would become too large.
        """
        refreshed = False
        with self._lane_requests.waiting(priority, scheduled=scheduled):
            while True:
                await self.open_or_create()
                if self.admits(priority, scheduled=scheduled):
                    return
                try:
                    with_lane(self.name, self.config, priority, scheduled=scheduled)
                except InvalidOptionError:
                    if refreshed:
                        raise
                    await self.refresh()
                    refreshed = True
                    continue
                await self._lane_requests.change_once(self._admit_requested_lanes)

    async def _admit_requested_lanes(self) -> None:
        try:
            present = set(await self._zookeeper.children(self.paths.base))
            present.update(f"lanes/{name}" for name in await self._zookeeper.children(self.paths.lanes))
        except NoNodeError:  # the queue was deleted
            self.invalidate()
            return
        before = self.snapshot
        config = self._lane_requests.add_to(before.config)
        folders = ["later"] if config.scheduled else []
        for tier in config.tiers:
            if tier.priority not in before.lanes and len(tier.put_lanes) == 1:
                folders += tier.put_lanes
        missing = [Create(self.paths.at(folder)) for folder in folders if folder not in present]
        await self.replace_config(before, config, [*missing, SetData(self.paths.items, b"")])

    async def admit_pending_batches(self) -> None:
        """Make consumers search for pending batches. No pending batch may exist before this has been stored.

        Raises: as `ensure_lane`.
        """
        await self.open_or_create()
        while not self.config.staged:
            await self.replace_config(self.snapshot, replace(self.config, staged=True))
            await self.open_or_create()

    async def ensure_hour(self, folder: str, priority: int) -> None:
        """Create the znode for the items due in one hour, unless it exists.

        Raises: as `ensure_lane`.
        """
        while True:
            await self.ensure_lane(priority, scheduled=True)
            create = [self.snapshot.check, Create(self.paths.at(folder))]
            try:
                await apply_until_answered(self._zookeeper, create)
            except MultiError as error:
                if isinstance(error.error, NodeExistsError):
                    return
                if isinstance(error.error, NoAuthError):
                    raise access_denied(self.name, error.error) from error
                if not isinstance(error.error, BadVersionError | NoNodeError):
                    raise
                self.invalidate()
            else:
                return

    def note_lane_end(self, path: str) -> None:
        """Open the next generation of a new item's lane, whose counter is near its end."""
        self._links.lane_ends(self, path)

    async def next_generation(self, path: str) -> None:
        """Open the next generation of the lane of an item's path, unless it is open.

        Raises: as `open`; QueueFullError: too many lanes of the shard or of the queue have messages.
        """
        await open_next_generation(self._zookeeper, self, path)

    async def allow_bundles(self) -> None:
        """Record in the configuration that there may be bundles, and create their counters: the next puts are bundled.

        A failure leaves the configuration as it is, and must not end the session, whose task this is: messages are
        then stored one by one, and the next commit tries again, unless an ACL refuses the change.
        """
        if self.bundle_setup.allowing:
            return
        self.bundle_setup.allowing = True
        try:
            opened = self.ready or await self.open_existing()
            before = self.snapshot
            if opened and before.config.bundle_limit > 1 and not before.config.bundled:
                config = replace(before.config, bundled=True)
                # Every session reads the changed configuration, and would create the counters if they were missing.
                counters = await self.bundle_setup.first_counters()
                try:
                    await self.replace_config(before, config, counters)
                except AccessDeniedError:  # perhaps only of the counters
                    await self.replace_config(before, config)
        except AccessDeniedError:
            return  # this user will not be allowed to later either
        except (QueueError, ZooKeeperError) as error:
            log.debug("queue %s: bundles are not allowed yet: %s", self.name, error, extra={"queue": self.name})
        self.bundle_setup.allowing = False

    async def replace_config(
        self, before: QueueSnapshot, config: StoredConfig, operations: Sequence[Operation] = ()
    ) -> bool:
        """Replace the configuration from which the new one was computed; return whether that is known to have worked.

        It does not if the configuration has changed since, also by this session. If False is returned, the caller
        checks whether it has worked.
        """
        applied = False
        change = [SetData(self.paths.base, config.encode(), before.revision.version), *operations]
        try:
            await apply_until_answered(self._zookeeper, change)
        except MultiError as error:
            if isinstance(error.error, NoAuthError):
                raise access_denied(self.name, error.error) from error
        else:
            applied = True
        self.invalidate()
        return applied

    def repair(self, operation: Operation, error: ZooKeeperError) -> Coroutine[object, object, None] | None:
        """Return the repair for a refusal: of a changed configuration, a missing znode, or an exhausted lane.

        None: the write does without the operation from now on.

        Raises:
            AccessDeniedError: a znode's ACL refuses access.
            NotCommittedError: no repair is known.
        """
        if isinstance(error, NoAuthError):
            if operation.path.startswith(self.paths.bundled):
                self.bundle_setup.refuse(error)
                return None
            raise access_denied(self.name, error)
        if isinstance(error, BadVersionError | NoNodeError):
            self.invalidate()
            if operation.path.startswith(self.paths.bundled):
                self.bundle_setup.missing()
            place = self.paths.place_of(operation.path)
            if isinstance(operation, Create) and is_later(place) and isinstance(error, NoNodeError):
                return self.ensure_hour(lane_at(place), priority_at(place))
            lane = place if is_lane(place) else lane_at(place)
            if isinstance(error, NoNodeError) and is_lane(lane):
                return self._open_lane(lane)
            # The check of the configuration is the first operation of each put, so a deleted queue fails it.
            return self.open_or_create() if isinstance(operation, Check) else self._reopen()
        if isinstance(error, NodeExistsError) and isinstance(operation, Create) and operation.sequential:
            # The lane's counter is exhausted, and every create in the lane fails from now on.
            return self.next_generation(operation.path)
        msg = f"queue {self.name!r}: ZooKeeper refused the commit: {error}; nothing was applied"
        raise NotCommittedError(msg) from error

    def lacks_lane(self, operation: Operation, error: ZooKeeperError) -> bool:
        """Whether a put was refused because its lane is missing; `repair` creates it with the other missing lanes."""
        missing = isinstance(error, NoNodeError) and isinstance(operation, Create) and operation.sequential
        return missing and operation.path.startswith(f"{self.paths.lanes}/")

    def _open_lane(self, lane: str) -> Coroutine[object, object, None]:
        """Make the next opening create a lane, and the other chosen lanes that may be missing as well."""
        self._missing_lanes.want({lane, *self.snapshot.lanes.take_chosen()})
        return self._open_wanted(lane)

    async def _open_wanted(self, lane: str) -> None:
        """Open the queue, and admit the lane's priority.

        Raises: as `ensure_lane`; AccessDeniedError: an ACL forbids the lane.
        """
        priority = priority_of(lane)
        await (self.ensure_lane(priority, scheduled=False) if priority else self._reopen())
        refusal = self._missing_lanes.refusal(lane)
        if refusal is not None:
            raise access_denied(self.name, refusal) from refusal

    async def _reopen(self) -> None:
        """Open the queue again. Raises: as `open`; NotCommittedError: it was deleted."""
        try:
            await self.open()
        except NotFoundError as error:
            msg = f"queue {self.name!r} was deleted; nothing was applied"
            raise NotCommittedError(msg) from error

    async def read_versions(self, lock: str, ours: Callable[[Node], bool], generation: int) -> tuple[int, int] | None:
        """Return the versions of the locks znode and of the configuration while ``lock`` was ours; None: it is not.

        ``ours`` distinguishes our lock from locks that other clients have created at the same path since.

        Raises: SessionExpiredError, NoAuthError, ClientClosedError: of the zookeeper package.
        """
        reads = [self.paths.base, self.paths.locks, lock]
        base, folder, node = await self._zookeeper.read_many(reads, generation=generation)
        if base is None or folder is None or node is None or not ours(node):
            return None
        self.forced_version = folder.stat.version
        return self.forced_version, base.stat.version

    async def key_holder(self, key: str) -> KeyHolder | None:
        """Return the message that holds a unique key, given the key's hash; None if none does.

        Raises: AccessDeniedError.
        """
        try:
            with translate_denials(self.name):
                return KeyHolder.decode((await self._zookeeper.read(self.paths.key(key))).data)
        except NoNodeError:
            return None

    async def free_key(self, key: str, holder: KeyHolder) -> bool:
        """End the holder of a unique key if it has expired; see `SessionLinks.free_key`."""
        return await self._links.free_key(self, key, holder)

    async def exists(self, since: int | None = None) -> bool:
        """Return whether the queue exists (``since`` a time, ms in ZooKeeper's time). Raises: AccessDeniedError.

        This syncs first. A lagging server may not know a new queue, and would make an acknowledged message appear lost.
        """
        with translate_denials(self.name):
            return await exists(self._zookeeper, self.paths, since)

    async def is_marked(self) -> bool:
        """Whether the queue is marked as deleted, and some of its znodes may be left. Raises: AccessDeniedError."""
        with translate_denials(self.name):
            return await is_marked(self._zookeeper, self.paths)

    async def configure(self, config: QueueConfig, prepare: Callable[[], Awaitable[None]]) -> None:
        """Replace the stored settings by those that are not None, after ``prepare``; the others stay as they are.

        This creates the queue, unless `QueueConfig.paused` is the only setting: a pause is for a queue that exists.

        Raises: ConfigConflictError, AccessDeniedError, PayloadError, NotFoundError; InvalidOptionError: too many
        shards.
        """
        try:
            with self._choice.replacing(config.policy):
                await prepare()
                await self._configure(config)
        except BaseException:  # a cancelled change may have been applied
            self.invalidate()  # the stored policy is compared with the requested one again
            raise

    async def _configure(self, config: QueueConfig) -> None:
        creates = config.paused is None or config != QueueConfig(paused=config.paused)
        await self.refresh()
        reopen = self.open_or_create if creates else self.open
        await reopen()
        while True:
            before = self.snapshot
            check_change(self.name, before.config, config)
            merged = before.config.changed(config)
            # Consumers that the messages were not for are idle.
            wakeup = [SetData(self.paths.items, b"")] if merged.affinity != before.config.affinity else []
            applied = await self.replace_config(before, merged, wakeup)
            await reopen()
            if applied or self.config == merged:
                return

    def retry_at(self, due: int, message_id: str) -> None:
        """Pass the end of a backoff on to the claim listener."""
        for listener in self.claim_listeners:
            listener.retry_at(due, message_id)

    def release_later(self, claim: object, delay: float) -> None:
        """Hold a claim for ``delay`` more seconds, and then release it."""
        if self.claim_listeners:
            self.claim_listeners[0].release_later(claim, delay)

    async def _try_open(self, opening: Opening) -> None:
        paths, invalidations = self.paths, self._invalidations
        try:
            data, stat = await self._zookeeper.read(paths.base)
        except NoNodeError:
            await self._create_queue(opening, None)
            return  # read it: it may have been deleted since
        if is_deleted(data):
            await self._create_queue(opening, stat.version)
            return
        config = configuration_of(paths, data)
        self._choice.compare(config.policy)
        if config.policy is None and self._choice.initial is not None:
            config = replace(config, policy=self._choice.initial)
            await self._zookeeper.multi([SetData(paths.base, config.encode(), stat.version)])
            return  # read again: another process may have stored one first
        if self._choice.groups and config.groups is None and config.affinity != "producer":
            config = replace(config, groups=config.shards or 1)
            await self._zookeeper.multi([SetData(paths.base, config.encode(), stat.version)])
            return
        if config.lifetime is not None:
            await self._links.clock.learned(paths.due)  # every put computes the time when its message expires
        await complete(self._zookeeper, paths, self._required_znodes(), config, stat.version)
        if config.bundled:
            await self.bundle_setup.complete(Check(paths.base, stat.version))
        same = await self._missing_lanes.make(config, stat)
        locks = await self._zookeeper.exists(paths.locks)
        if invalidations != self._invalidations or not same:
            return  # read again: the queue or the request may have changed since
        self.forced_version = 0 if locks is None else locks.version
        self._choice.settled()
        self._adopt(config, stat)

    async def _create_queue(self, opening: Opening, deleted: int | None) -> None:
        """Create the queue. ``deleted`` is the version of the znode that an earlier queue has left; None: none.

        Raises: NotFoundError: it is not to be created; ZooKeeperError: MultiError also if another process was faster.
        """
        if not opening.creates:
            msg = f"there is no queue {self.name!r} below {self.paths.root}; its first put creates it"
            raise NotFoundError(msg)
        await self._zookeeper.multi(await self.creation(deleted, self._choice.settings, self._choice.entry))

    async def creation(self, deleted: int | None, settings: QueueConfig, entry: str | None) -> list[Operation]:
        """Clear the rest of an earlier queue (``deleted``), and return the operations that create this one.

        It gets these settings, and the znode ``entry`` is created with it, unless it exists.
        """
        paths = self.paths
        config = StoredConfig(policy=self._choice.initial, bundle=DEFAULT_BUNDLE if self.dialect is None else None)
        data = config.changed(settings).encode()
        if deleted is None:
            await self._zookeeper.ensure(paths.root)
            base: Operation = Create(paths.base, data)
        else:
            await clear(self._zookeeper, paths.base, deleted)
            base = SetData(paths.base, data, deleted)
        znodes = self._required_znodes()
        if entry is not None:
            await self._zookeeper.ensure(parent_of(entry))
            znodes += [] if await self._zookeeper.exists(entry) else [entry]
        return [base, *map(Create, znodes)]

    def _adopt(self, config: StoredConfig, stat: Stat) -> None:
        """Replace the snapshot by the one of a configuration that has been read."""
        revision = Revision(stat.czxid, stat.version)
        same = self.snapshot.revision == revision
        lanes = self.snapshot.lanes if same else PutLanes(config, self.paths, self._links.random)
        snapshot = QueueSnapshot.of(self.paths.base, config, lanes, revision)
        for feature in self._features:
            snapshot = feature.configured(snapshot)
        self.snapshot, self.ready = snapshot, True
        for callback in self._config_listeners:
            callback()

    def _required_znodes(self) -> list[str]:
        """Return the znodes that the queue must have."""
        return folders_of(self.paths)


def configuration_of(paths: QueuePaths, data: bytes) -> StoredConfig:
    """Decode a stored configuration. Raises: PayloadError."""
    try:
        return StoredConfig.decode(data)
    except MalformedError as error:
        msg = (
            f"queue {paths.name!r}: the configuration stored at {paths.base} does not decode: {error}; update this "
            "program if a newer one has stored it, otherwise correct the JSON of this znode, for example with zkCli"
        )
        raise PayloadError(msg) from error
