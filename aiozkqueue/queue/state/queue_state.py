"""One queue as a session knows it: its paths, its configuration and that one's version."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from aiozkqueue.errors import (
    ConnectionLostError,
    NotCommittedError,
    PayloadError,
    QueueFullError,
)
from aiozkqueue.layout import (
    LANE_END,
    MOST_GENERATIONS,
    AtLeastOnce,
    ItemName,
    MalformedError,
    QueueConfig,
    QueuePaths,
    is_later,
    item_id,
    lane_of,
    priority_at,
    priority_of,
)
from aiozkqueue.queue.candidates.backlog import Backlog
from aiozkqueue.queue.candidates.groups import lock_id
from aiozkqueue.queue.candidates.tag_records import TagRecords
from aiozkqueue.queue.runtime.acl_errors import allowed, denied
from aiozkqueue.zookeeper import (
    BadVersionError,
    Check,
    ConnectionLossError,
    Create,
    MultiError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    ProtocolError,
    ServerError,
    SessionExpiredError,
    SetData,
    ZooKeeper,
)

from .config_rules import PolicyChoice, check_change, check_generation, with_lane
from .lanes import PutLanes
from .znodes import complete, folders_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from random import Random

    from aiozkqueue.dialects import Dialect
    from aiozkqueue.layout import Policy, Tier
    from aiozkqueue.queue.commit.attached import EndHook
    from aiozkqueue.queue.commit.puts import Put
    from aiozkqueue.queue.put.capacity import CapacityGate
    from aiozkqueue.queue.runtime.clock import ServerClock
    from aiozkqueue.zookeeper import Node, Operation, ZooKeeperError

    from .claim import Claim, Fate

DEFAULT_POLICY = AtLeastOnce()

_LANE_END = f"{LANE_END:010d}"


class ClaimListener(Protocol):
    """Who hands out a queue's claims, and wants to know when one is over."""

    def claim_settled(self, claim: Claim, fate: Fate) -> None:
        """Take note that a claim's lock is gone, and what has become of its item."""

    def retry_at(self, due: int, message_id: str) -> None:
        """Take note of a backoff that ends at ``due`` (ms, ZooKeeper's time)."""

    def keep(self, claim: Claim, delay: float) -> None:
        """Give a claim back after ``delay`` seconds, and hold it until then."""


class QueueState:
    """Paths, configuration and existence of one queue. Shared by all that a session does with it."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        root: str,
        name: str,
        lane_ends: Callable[[QueueState, str], None],
        random: Random,
        *,
        paths: QueuePaths | None = None,
    ) -> None:
        self._lane_ends = lane_ends
        self._random = random
        self.paths: QueuePaths = paths or QueuePaths(root, name)
        self.name = name
        self.dialect: Dialect | None = None
        """Whose layout it has; None: our own."""
        self.longest_id = 24
        """How long the ids get that are in the names of locks."""
        self.claim_listener: ClaimListener | None = None
        self.clock: ServerClock | None = None
        """Tells ZooKeeper's time, where that is needed."""
        self.transform_put: Callable[[Put], Put] | None = None
        """Adds to each put what the queue's configuration asks of it; None: nothing. Called before every attempt, with
        what it returned for the last one."""
        self.takes: Callable[[str], bool] | None = None
        """Tells by an item's name whether this session takes it; None: it takes all."""
        self.config_listeners: list[Callable[[], None]] = []
        """Called whenever the configuration has been read."""
        self.end_hooks: tuple[EndHook, ...] = ()
        """Who adds to the multis that end messages of this queue."""
        self.room: CapacityGate | None = None
        """Who lets puts in, where the queue has a size."""
        self.tags: TagRecords = TagRecords(zookeeper, self.paths)
        """What the digests in items' names stand for."""
        self.config: QueueConfig = QueueConfig()
        self.policy: Policy = DEFAULT_POLICY
        """The policy in force."""
        self.version: int = -1
        self.forced_version: int = 0
        """The version of the folder of locks at some earlier moment: each lock forced open raises it."""
        self._zookeeper = zookeeper
        self._opening: asyncio.Event | None = None
        self._doubts = 0  # how often what has been read, or is being read, was said to be out of date
        self.ready: bool = False
        """Whether `open` has nothing left to do."""
        self._choice = PolicyChoice(name)
        self._groups_expected = False
        self.tiers: tuple[Tier, ...] = self.config.tiers
        """The lanes that may hold items, of each priority, the most urgent first."""
        self.lanes: PutLanes = PutLanes(self.config, self.paths)
        """Those that are put to."""

    @property
    def sticky(self) -> bool:
        """Whether a message is taken by the node that put it, as far as is known."""
        return self.config.affinity == "producer"

    def request_policy(self, policy: Policy) -> None:
        """Ask for a policy; it is stored, or found to conflict, by the next `open`.

        Raises:
            InvalidOptionError: it is none.
            ConfigConflictError: this session knows that another policy is stored, or was asked for.
        """
        if self._choice.require(policy, self.config.policy if self.ready else None):
            self.invalidate()

    def prefer(self, policy: Policy) -> None:
        """Have a policy stored by the next `open` if the queue has none; one that is stored stays in force.

        Raises: InvalidOptionError: it is none.
        """
        new = self._choice.prefer(policy)
        if self.config.policy is None and (new or self.ready):
            self.invalidate()

    async def open(self) -> None:
        """Read the configuration, and create what of the queue is missing; at once when that has been done.

        Raises:
            AccessDeniedError: a znode's ACL refuses it.
            ConfigConflictError: another policy is stored than the one asked for.
            ConnectionLostError: what answers does not speak ZooKeeper's protocol.
        """
        while not self.ready:
            if self._opening is not None:
                await self._opening.wait()  # all who wait go on at the same moment, and commit together
                continue
            self._opening = asyncio.Event()
            try:
                await self._attempt_open()
            finally:
                self._opening.set()
                self._opening = None

    async def _attempt_open(self) -> None:
        """Try once; what another process has got in the way of is tried again by `open`."""
        try:
            await self._try_open()
        except (ConnectionLossError, SessionExpiredError):
            await self._zookeeper.wait_connected()
        except NoAuthError as error:
            raise denied(self.name, error) from error
        except (ProtocolError, ServerError, BadVersionError, NodeExistsError, NotEmptyError) as error:
            msg = f"queue {self.name!r}: the server's answer makes no sense: {error}"
            raise ConnectionLostError(msg) from error
        except MultiError as error:
            if isinstance(error.error, NoAuthError):
                raise denied(self.name, error.error) from error
            if not isinstance(error.error, NodeExistsError | BadVersionError | NoNodeError):
                raise
            # another process was quicker with one of them: look again

    def expect_groups(self) -> None:
        """Have the queue's configuration tell that there are groups, by the next `open`."""
        if self.config.groups is None and not self.sticky and (self.ready or not self._groups_expected):
            self.invalidate()
        self._groups_expected = True

    def locked_by(self, name: str, config: QueueConfig | None = None) -> str:
        """Return what locks an item, by the item's name; by a newer configuration if given. Raises: MalformedError."""
        return lock_id(config or self.config, name)

    def item_id(self, name: str) -> str:
        """Return the id in an item's name. Raises: MalformedError: it is none."""
        return item_id(name)

    def parse_item(self, name: str) -> ItemName | None:
        """Read an item's name, or a dead letter's; None when it is none."""
        return ItemName.parse(name)

    def dead(self, claim: Claim) -> str:
        """Return the path of the dead letter that a message becomes."""
        return self.paths.dead(claim.name)

    def wakeup(self, path: str, wakeup_op: str) -> Sequence[Operation]:
        """Return what wakes idle consumers when locks have gone: a watch on items sees no lock go.

        ``path`` is the items' parent or lane, ``wakeup_op`` the transaction.
        """
        del wakeup_op
        return (SetData(path, b""),)

    def backlog(self, random: Random) -> Backlog:
        """Make what keeps candidates of this queue."""
        return Backlog(random)

    def lock(self, name: str) -> str:
        """Return the path of what locks an item, by the item's name. Raises: MalformedError."""
        return self.paths.lock(self.locked_by(name))

    def invalidate(self) -> None:
        """Take note that the configuration has changed, or that something of the queue is missing."""
        self.ready = False
        self._doubts += 1

    def admits(self, priority: int, *, scheduled: bool) -> bool:
        """Whether consumers look for items of a priority, and for scheduled ones, as far as is known here."""
        if self.config.ordered and (priority or scheduled):
            return False
        return self.ready and priority in self.lanes and (self.config.scheduled or not scheduled)

    async def ensure_lane(self, priority: int, *, scheduled: bool) -> None:
        """Give a priority lanes of its own, and what is scheduled its folder, unless they have them.

        They are there only when the configuration says so: both are written by one multi. Else somebody could put to
        where no consumer looks. Idle consumers hear of it.

        Raises: as `open`; InvalidOptionError: the configuration, or the number of lanes, would grow too large.
        """
        while True:
            await self.open()
            if self.admits(priority, scheduled=scheduled):
                return
            config = with_lane(self.name, self.config, priority, scheduled=scheduled)
            folders = ["later"] if scheduled else []
            if priority not in self.lanes:
                folders += [lane for tier in config.tiers if tier.priority == priority for lane in tier.put_lanes]
            present = set(await self._zookeeper.children(self.paths.base))
            present.update(f"lanes/{name}" for name in await self._zookeeper.children(self.paths.lanes))
            missing = [Create(self.paths.at(folder)) for folder in folders if folder not in present]
            await self._change(config, [*missing, SetData(self.paths.items, b"")])

    async def admit_staged(self) -> None:
        """Have consumers look for batches that are not complete: only then may there be any.

        Raises: as `ensure_lane`.
        """
        await self.open()
        while not self.config.staged:
            await self._change(replace(self.config, staged=True))
            await self.open()

    async def open_later(self, folder: str, priority: int) -> None:
        """Make a folder for what is due in one hour, unless it is there.

        Raises: as `ensure_lane`.
        """
        while True:
            await self.ensure_lane(priority, scheduled=True)
            try:
                await self._zookeeper.multi([self.check(), Create(self.paths.at(folder))])
            except (ConnectionLossError, SessionExpiredError):
                await self._zookeeper.wait_connected()
            except MultiError as error:
                if isinstance(error.error, NodeExistsError):
                    return
                if isinstance(error.error, NoAuthError):
                    raise denied(self.name, error.error) from error
                if not isinstance(error.error, BadVersionError | NoNodeError):
                    raise
                self.invalidate()
            else:
                return

    def note_sequence(self, path: str) -> None:
        """Take note of the path of an item just put: near the end of its lane's counter the next one is opened."""
        if path[-len(_LANE_END) :] >= _LANE_END:
            self._lane_ends(self, path)

    async def next_generation(self, path: str) -> None:
        """Open the next generation of the lane that an item's path is in, unless that has been done.

        Raises: as `open`; QueueFullError: the shard has too many generations that are not empty yet.
        """
        lane = path[len(self.paths.base) + 1 :].rpartition("/")[0]
        priority = priority_of(lane)
        while True:
            await self.open()
            config = self.config
            # Groups stay in shards that are put to no more.
            lanes = next((tier.newest_lanes for tier in self.tiers if tier.priority == priority), ())
            if lane not in lanes:
                return
            shard = lanes.index(lane)
            spans = config.priorities[priority] if priority else config.generations
            oldest, newest = spans.get(shard, (0, 0))
            while oldest < newest and not await self._zookeeper.children(
                self.paths.at(lane_of(shard, oldest, priority))
            ):
                oldest += 1  # nobody puts there any more: whoever still would is refused by the version
            if newest + 1 >= oldest + MOST_GENERATIONS:
                msg = f"queue {self.name!r}: lane {lane} is at its end, and {MOST_GENERATIONS} before it are not empty"
                raise QueueFullError(msg)
            check_generation(self.name, config, lane, emptied=oldest - spans.get(shard, (0, 0))[0])
            await self._zookeeper.ensure(self.paths.at(lane_of(shard, newest + 1, priority)))
            await self._change(config.grown(priority, shard, oldest, newest + 1))

    async def _change(self, config: QueueConfig, also: Sequence[Operation] = ()) -> None:
        """Try once to store a configuration in the place of the one known; whoever calls looks whether it took."""
        try:
            await self._zookeeper.multi([SetData(self.paths.base, config.encode(), self.version), *also])
        except (ConnectionLossError, SessionExpiredError):
            await self._zookeeper.wait_connected()
        except MultiError as error:
            if isinstance(error.error, NoAuthError):
                raise denied(self.name, error.error) from error
        self.invalidate()

    def repair(self, operation: Operation, error: ZooKeeperError) -> Coroutine[object, object, None]:
        """Return what mends the cause of a refusal: the configuration has changed, or something is missing or full.

        Raises:
            AccessDeniedError: a znode's ACL refuses it.
            NotCommittedError: nothing known mends this.
        """
        if isinstance(error, NoAuthError):
            raise denied(self.name, error)
        if isinstance(error, BadVersionError | NoNodeError):
            self.invalidate()
            place = operation.path[len(self.paths.base) + 1 :]
            if isinstance(operation, Create) and is_later(place) and isinstance(error, NoNodeError):
                return self.open_later(place.rpartition("/")[0], priority_at(place))
            priority = priority_of(place.rpartition("/")[0])
            return self.ensure_lane(priority, scheduled=False) if priority else self.open()
        if isinstance(error, NodeExistsError) and isinstance(operation, Create) and operation.sequential:
            # The counter of a lane has come to its end, and every create in it fails from now on.
            return self.next_generation(operation.path)
        msg = f"queue {self.name!r}: ZooKeeper refused the commit: {error}; nothing of it was applied"
        raise NotCommittedError(msg) from error

    async def unforced(self, lock: str, ours: Callable[[Node], bool], generation: int) -> int | None:
        """Return the version that the folder of locks had while this lock was the one we made; None: it is so no more.

        ``ours`` tells it from those that others have made since under the same path.

        Raises: SessionExpiredError, NoAuthError, ClientClosedError: of the zookeeper package.
        """
        while True:
            try:
                folder, node = await self._zookeeper.read_many([self.paths.locks, lock], generation=generation)
            except ConnectionLossError:
                await self._zookeeper.wait_connected(generation=generation)
                continue
            if folder is None or node is None or not ours(node):
                return None
            self.forced_version = folder.stat.version
            return self.forced_version

    async def key_holder(self, key: str) -> str | None:
        """Return the id of the message that holds a unique key, given by its hash; None when none does.

        Raises: AccessDeniedError.
        """
        try:
            with allowed(self.name):
                return (await self._zookeeper.read(self.paths.key(key))).data.decode("utf-8", "replace")
        except NoNodeError:
            return None

    def check(self) -> Operation:
        """Return the assertion that the configuration is still the one known."""
        return Check(self.paths.base, self.version)

    async def exists(self) -> bool:
        """Tell whether there is such a queue. Raises: AccessDeniedError.

        A server that lags has not heard of one that is new: by its word an acknowledgement would be lost.
        """
        with allowed(self.name):
            await self._zookeeper.sync(self.paths.base)
            return await self._zookeeper.exists(self.paths.items) is not None

    async def configure(self, config: QueueConfig) -> None:
        """Store the settings that are not None, whatever was stored before; the others are kept.

        Raises: ConfigConflictError, AccessDeniedError, PayloadError; InvalidOptionError: too many shards.
        """
        if config.policy is not None:
            self._choice.grant(config.policy)
        await self.open()
        while True:
            check_change(self.name, self.config, config)
            merged = self.config.changed(config)
            try:
                await self._zookeeper.multi([SetData(self.paths.base, merged.encode(), self.version)])
            except (ConnectionLossError, SessionExpiredError):
                await self._zookeeper.wait_connected()
            except MultiError as error:
                if isinstance(error.error, NoAuthError):
                    raise denied(self.name, error.error) from error
            else:
                self.invalidate()
                await self.open()
                return
            self.invalidate()
            await self.open()
            if self.config == merged:
                return

    def retry_at(self, due: int, message_id: str) -> None:
        """Pass the end of a backoff on to whoever keeps the timers."""
        if self.claim_listener is not None:
            self.claim_listener.retry_at(due, message_id)

    def keep(self, claim: Claim, delay: float) -> None:
        """Have a claim held for ``delay`` seconds more, and then given back."""
        if self.claim_listener is not None:
            self.claim_listener.keep(claim, delay)

    async def _try_open(self) -> None:
        paths, doubts = self.paths, self._doubts
        try:
            data, stat = await self._zookeeper.read(paths.base)
        except NoNodeError:
            await self._zookeeper.ensure(paths.root)
            config = QueueConfig(policy=self._choice.initial)
            folders = [Create(path) for path in self._folders()]
            await self._zookeeper.multi([Create(paths.base, config.encode()), *folders])
            data, stat = await self._zookeeper.read(paths.base)
        config = configuration_of(paths, data)
        self._choice.compare(config.policy)
        if config.policy is None and self._choice.initial is not None:
            config = replace(config, policy=self._choice.initial)
            await self._zookeeper.multi([SetData(paths.base, config.encode(), stat.version)])
            return  # read again: another process may have been quicker
        if self._groups_expected and config.groups is None and config.affinity != "producer":
            config = replace(config, groups=config.shards or 1)
            await self._zookeeper.multi([SetData(paths.base, config.encode(), stat.version)])
            return
        if config.lifetime is not None and self.clock is not None:
            await self.clock.learned(paths.due)  # every put says when its message ends
        await complete(self._zookeeper, paths, self._folders(), config)
        locks = await self._zookeeper.exists(paths.locks)
        if doubts != self._doubts:
            return  # read again: it may have changed since it was read, or something else is wanted of it
        self.forced_version = 0 if locks is None else locks.version
        self._choice.settled()
        self.config, self.version, self.ready = config, stat.version, True
        self.policy = config.policy or DEFAULT_POLICY
        self.tiers = config.tiers
        self.lanes = PutLanes(config, self.paths, self._random)
        for follow in self.config_listeners:
            follow()

    def _folders(self) -> list[str]:
        """Return the folders that it must have."""
        return folders_of(self.paths)


def configuration_of(paths: QueuePaths, data: bytes) -> QueueConfig:
    """Read a stored configuration. Raises: PayloadError."""
    try:
        return QueueConfig.decode(data)
    except MalformedError as error:
        msg = (
            f"queue {paths.name!r}: the configuration stored at {paths.base} does not decode: {error}; "
            "correct the JSON of this znode, with zkCli for instance"
        )
        raise PayloadError(msg) from error
