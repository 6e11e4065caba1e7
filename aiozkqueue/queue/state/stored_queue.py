"""A queue as it is stored: opened, created, and its configuration read and replaced."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from aiozkqueue.arguments import plain
from aiozkqueue.errors import ConnectionLostError, NotFoundError, PayloadError
from aiozkqueue.layout import DEFAULT_BUNDLE, MalformedError, QueueConfig, StoredConfig, is_deleted
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
    apply_until_answered,
    parent_of,
    until_answered,
)

from .bundle_setup import BundleSetup
from .config_rules import PolicyChoice, check_change
from .lanes import PutLanes
from .missing_lanes import MissingLanes
from .snapshot import QueueSnapshot, Revision
from .znodes import clear, complete, exists, folders_of, is_marked

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from random import Random

    from aiozkqueue.dialects import Dialect
    from aiozkqueue.layout import Policy, QueuePaths
    from aiozkqueue.runtime.clock import ServerClock
    from aiozkqueue.zookeeper import Operation, Stat, ZooKeeper, ZooKeeperError

    from .snapshot import QueueFeature


class StoredQueue:
    """The znodes and the configuration of one queue: read, created and changed by one session."""

    dialect: Dialect | None = None
    """The layout of another program's queue; None: our own layout."""
    _features: tuple[QueueFeature, ...] = ()  # in the order in which they see each configuration

    def __init__(self, zookeeper: ZooKeeper, paths: QueuePaths, name: str, clock: ServerClock, random: Random) -> None:
        self.paths: QueuePaths = paths
        self.name: str = plain(name)
        self.snapshot: QueueSnapshot = QueueSnapshot.of(paths.base, StoredConfig(), PutLanes(StoredConfig(), paths))
        """The configuration last read."""
        self.ready: bool = False
        """Whether `open` has nothing to do."""
        self.forced_version: int = 0
        """The version of the locks znode at some earlier time. Each lock that is removed by force raises it."""
        self.bundle_setup: BundleSetup = BundleSetup(zookeeper, paths)
        self._zookeeper = zookeeper
        self._clock = clock
        self._random = random
        self._opening: asyncio.Event | None = None  # set when the attempt in progress has ended
        self._invalidations = 0  # a read of the configuration that began before the last one is out of date
        self._choice = PolicyChoice(name)
        self._missing_lanes = MissingLanes(zookeeper, paths)
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

    def expect_groups(self) -> None:
        """Make the next `open` enable groups in the configuration."""
        if self.config.groups is None and not self.sticky and (self.ready or not self._choice.groups):
            self.invalidate()
        self._choice.groups = True

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

    def invalidate(self) -> None:
        """Record that the configuration has changed, or that a znode of the queue is missing."""
        self.ready = False
        self._invalidations += 1

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
        pauses = config.paused is not None and config == QueueConfig(paused=config.paused)
        await self.refresh()
        reopen = self.open if pauses else self.open_or_create
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

    async def replace_config(
        self, before: QueueSnapshot, config: StoredConfig, operations: Sequence[Operation] = ()
    ) -> bool:
        """Replace the configuration from which the new one was computed; return whether that is known to have worked.

        It does not if the configuration has changed since, also by this session. If False is returned, the caller
        checks whether it has worked.
        """
        change = [SetData(self.paths.base, config.encode(), before.revision.version), *operations]
        try:
            await apply_until_answered(self._zookeeper, change)
        except MultiError as error:
            if isinstance(error.error, NoAuthError):
                raise access_denied(self.name, error.error) from error
            if isinstance(error.error, ServerError):
                raise self._invalid_answer(error.error) from error  # a repetition would be refused too
            return False
        finally:
            self.invalidate()
        return True

    async def _open(self, *, creates: bool) -> None:
        while not self.ready:
            if self._opening is not None:
                await self._opening.wait()  # all waiting tasks continue at the same moment, and share a commit
                continue
            self._opening = ended = asyncio.Event()
            try:
                await self._attempt_open(creates=creates)
            finally:
                self._opening = None
                ended.set()

    async def _attempt_open(self, *, creates: bool) -> None:
        """Try to open the queue once; `_open` tries again if another process has interfered."""
        try:
            await until_answered(self._zookeeper, partial(self._try_open, creates=creates))
        except NoAuthError as error:
            raise access_denied(self.name, error) from error
        except NoNodeError:
            pass  # another process has deleted the queue in the meantime: try again
        except (MultiError, ProtocolError, ServerError, BadVersionError, NodeExistsError, NotEmptyError) as error:
            cause = error.error if isinstance(error, MultiError) else error
            if isinstance(cause, NoAuthError):
                raise access_denied(self.name, cause) from error
            if cause is error or not isinstance(cause, NodeExistsError | BadVersionError | NoNodeError):
                raise self._invalid_answer(cause) from error
            # Another process has created or changed a znode in the meantime: try again.

    def _invalid_answer(self, error: ZooKeeperError) -> ConnectionLostError:
        return ConnectionLostError(f"queue {self.name!r}: the server's answer is invalid: {error}")

    async def _try_open(self, *, creates: bool) -> None:
        paths, invalidations = self.paths, self._invalidations
        try:
            data, stat = await self._zookeeper.read(paths.base)
        except NoNodeError:
            await self._create_queue(None, creates=creates)
            return  # read it: it may have been deleted since
        if is_deleted(data):
            await self._create_queue(stat.version, creates=creates)
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
            await self._clock.learned(paths.due)  # every put computes the time when its message expires
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

    async def _create_queue(self, deleted: int | None, *, creates: bool) -> None:
        """Create the queue. ``deleted`` is the version of the znode that an earlier queue has left; None: none.

        Raises: NotFoundError: it is not to be created; ZooKeeperError: MultiError also if another process was faster.
        """
        if not creates:
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
        lanes = self.snapshot.lanes if same else PutLanes(config, self.paths, self._random)
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
