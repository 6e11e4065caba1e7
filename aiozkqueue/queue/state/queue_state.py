"""A session's view of one queue: the names in its layout, and the repairs that its puts and commits need."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aiozkqueue.errors import AccessDeniedError, InvalidOptionError, NotCommittedError, NotFoundError, QueueError
from aiozkqueue.layout import (
    ItemName,
    KeyHolder,
    QueuePaths,
    candidate_id,
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
    SetData,
    ZooKeeper,
    ZooKeeperError,
    apply_until_answered,
)

from .config_rules import with_lane
from .generations import open_next_generation
from .lane_requests import LaneRequests
from .stored_queue import StoredQueue

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
    from random import Random

    from aiozkqueue.layout import StoredConfig
    from aiozkqueue.runtime.clock import ServerClock
    from aiozkqueue.zookeeper import Node, Operation, Versioned

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


class QueueState(StoredQueue):
    """The state of one queue in a session, shared by all objects of the session that use the queue."""

    def __init__(
        self, zookeeper: ZooKeeper, root: str, name: str, links: SessionLinks, *, paths: QueuePaths | None = None
    ) -> None:
        super().__init__(zookeeper, paths or QueuePaths(root, name), name, links.clock, links.random)
        self._links = links
        self.longest_id = 24
        """The maximum length of an id in a lock's name."""
        self.claim_listeners: tuple[ClaimListener[Any], ...] = ()
        """The dispatchers of its claims, one for each filter by which this session consumes."""
        self.given_up_callbacks: list[Callable[[Any], None]] = []
        """Called with the `GivenUp` of each message that this session gives up; they must not raise."""
        self.tags: TagRecords = TagRecords(zookeeper, self.paths)
        """The tags that the digests in item names stand for."""
        self._lane_requests = LaneRequests(name)
        self._features = tuple(links.features(self))

    @property
    def answers(self) -> EndHook[Any, Any]:
        """The feature that answers the callers of messages that are given up."""
        return self._links.answers

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

    def retry_at(self, due: int, message_id: str) -> None:
        """Pass the end of a backoff on to the claim listener."""
        for listener in self.claim_listeners:
            listener.retry_at(due, message_id)

    def release_later(self, claim: object, delay: float) -> None:
        """Hold a claim for ``delay`` more seconds, and then release it."""
        if self.claim_listeners:
            self.claim_listeners[0].release_later(claim, delay)
