"""The janitor: a task of each session that cleans the queues it uses; one session cleans a queue at a time.

The mtime of a queue's ``janitor`` znode is the time of the last cleaning, so the interval holds across sessions and
processes. The session that cleans holds the ephemeral ``janitor/lock``. The lock only saves work: each removal is safe
for any number of sessions and repetitions (see `cleaning`). A session sends no request before the first interval is
over.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.errors import QueueError
from aiozkqueue.queue.commit.handle import QueueHandle
from aiozkqueue.zookeeper import (
    BadVersionError,
    Check,
    Create,
    Delete,
    MultiError,
    NoAuthError,
    NodeExistsError,
    SessionExpiredError,
    SetData,
    ZooKeeperError,
    apply_until_answered,
)

from .affinity import REAP_EVERY, reassign_neglected
from .cleaning import Cleaned, clean_queue, clean_root, fact_of, pass_record
from .orphans import ORPHAN_AGE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Node, Operation

log: Final = logging.getLogger(__name__)

#: The name of the root among the znodes that record the last clean-up.
ROOT_DUTY: Final = "/.janitor"
#: Default interval between two clean-ups of a queue, seconds.
CLEAN_EVERY: Final = 300.0
#: Seconds between two clean-ups of the slots of clients that no longer exist, and of deleted queues.
SLOTS_EVERY: Final = 3600.0
#: Maximum seconds until a session notices that another session has changed an interval.
CHECK_EVERY: Final = 60.0
#: Seconds until a pass that had more to do is followed by the next.
SOON: Final = 1.0
#: A session waits up to this random share of an interval longer, so that not all sessions check at once.
SPREAD: Final = 0.1
#: After a pass of its node a session waits this share of an interval longer: the next pass is another node's.
YIELD: Final = 0.3


class Pass(NamedTuple):
    """The result of a pass."""

    cleaned: Cleaned
    facts: Mapping[str, object] = {}
    """Facts for the next pass, which are stored in the record."""


class Duty:
    """A regular duty: to clean a queue, or the root (``queue`` is None)."""

    def __init__(
        self,
        path: str,
        within: str,
        interval: Callable[[], float],
        work: Callable[[bytes], Awaitable[Pass]],
        queue: str | None = None,
        *,
        node: str | None = None,
    ) -> None:
        self.path = path
        self.within = within
        """A znode that exists unless the queue was deleted."""
        self.extra: dict[str, str] = {} if queue is None else {"queue": queue}
        """The attributes of its log records."""
        self.interval = interval
        self.work = work
        self.node = node
        """The hash of this session's node, if a pass leaves out the messages of the node that makes it."""
        self.at: float = 0.0
        """When to check again, monotonic."""
        self.soon = False


class Janitor:
    """Cleans the queues that one session uses."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._duties: dict[str, Duty] = {}
        self._wakeup = asyncio.Event()
        self._follow(Duty(runtime.root + ROOT_DUTY, runtime.root, lambda: SLOTS_EVERY, self._clean_root))

    def follow(self, state: QueueState) -> None:
        """Register a queue that is used, or its changed configuration."""
        clean = partial(self._clean, state)
        self._follow(Duty(state.paths.janitor, state.paths.consumers, partial(interval_of, state), clean, state.name))
        if state.config.affinity == "producer":
            interval, reap = partial(reap_interval_of, state), partial(self._reassign, state)
            self._follow(
                Duty(state.paths.reaper, state.paths.consumers, interval, reap, state.name, node=self._runtime.node)
            )

    async def run(self) -> None:
        """Clean forever."""
        clock = self._runtime.clock
        while True:
            self._wakeup.clear()
            duty = min(self._duties.values(), key=lambda planned: planned.at)
            left = duty.at - clock.monotonic()
            if left > 0:
                timer = clock.call_later(left, self._wakeup.set)
                try:
                    await self._wakeup.wait()
                finally:
                    timer.cancel()
                continue
            wait = self._wait(duty)
            try:
                wait = await self._check(duty)
            except (QueueError, ZooKeeperError) as error:
                log.info("%s could not be cleaned: %s", duty.path, error, extra=duty.extra)  # tried again later
            duty.at = clock.monotonic() + min(wait, self._wait(duty))  # the interval may have changed in the meantime

    def _follow(self, duty: Duty) -> None:
        """Add a duty, or follow its changed interval."""
        at = self._runtime.clock.monotonic() + self._wait(duty)
        followed = self._duties.setdefault(duty.path, duty)
        followed.at = at if followed is duty else min(followed.at, at)
        self._wakeup.set()

    def _wait(self, duty: Duty) -> float:
        return min(CHECK_EVERY, duty.interval()) * (1 + SPREAD * self._runtime.random.random())

    async def _check(self, duty: Duty) -> float:
        """Clean if it is time and no other session does; return the seconds until the next check."""
        record = await self._record(duty)
        if record is None:
            return self._wait(duty)
        ahead = (record.stat.mtime - self._runtime.server_clock.now()) / 1000
        left = duty.interval() + ahead if ahead <= duty.interval() else 0.0  # otherwise the clock was set back
        if duty.node is not None and fact_of(record.data, "node") == duty.node:
            left += YIELD * duty.interval()  # a pass of another node covers the messages that the last one left out
        if left > 0 and not duty.soon:
            return min(left, CHECK_EVERY) * (1 + SPREAD * self._runtime.random.random())
        token = self._runtime.ids.next().encode()
        generation = await self._runtime.zookeeper.wait_connected()
        if not await self._lock(duty, record.stat.version, token, generation):
            duty.soon = False
            return self._wait(duty)
        data = b""
        try:
            cleaned, facts = await duty.work(record.data)
            data = pass_record(cleaned, self._runtime.ids.client, facts)
        finally:
            await self._unlock(duty, data, generation)
        duty.soon = cleaned.more
        return SOON if cleaned.more else self._wait(duty)

    async def _record(self, duty: Duty) -> Node | None:
        """Read when it was last cleaned; None if the record was just created, or the queue does not exist."""
        zookeeper = self._runtime.zookeeper
        (record,) = await zookeeper.read_many([duty.path])
        if record is None:
            try:
                await zookeeper.multi([Check(duty.within), Create(duty.path)])
            except MultiError as error:
                # Another session was faster, or the queue is gone.
                log.debug("%s: %s", duty.path, error, extra=duty.extra)
        return record

    async def _lock(self, duty: Duty, version: int, token: bytes, generation: int) -> bool:
        zookeeper, path = self._runtime.zookeeper, f"{duty.path}/lock"
        lock: list[Operation] = [Check(duty.path, version), Create(path, token, ephemeral=True)]
        try:
            await apply_until_answered(zookeeper, lock, generation=generation)
        except MultiError as error:
            if isinstance(error.error, BadVersionError):
                return False  # another session has cleaned in the meantime
            if not isinstance(error.error, NodeExistsError):
                raise error.error from error
        (held,) = await zookeeper.read_many([path], generation=generation)
        if held is None or held.data != token:  # otherwise it is ours, perhaps from a copy whose reply was lost
            return False
        self._runtime.server_clock.observe(held.stat.mtime)
        return True

    async def _unlock(self, duty: Duty, data: bytes, generation: int) -> None:
        """Record the time of the cleaning, and remove the lock, which otherwise ends with the session."""
        zookeeper, unlock = self._runtime.zookeeper, Delete(f"{duty.path}/lock")
        with suppress(MultiError, SessionExpiredError):  # a lost copy has done it, or the lock ended with the session
            try:
                await apply_until_answered(zookeeper, [unlock, SetData(duty.path, data)], generation=generation)
            except MultiError as refusal:
                if not isinstance(refusal.error, NoAuthError):
                    raise
                # Without a record of this pass, the next one is soon. With the lock, no session would make another.
                log.info("%s: this clean-up is not recorded: %s", duty.path, refusal.error, extra=duty.extra)
                await apply_until_answered(zookeeper, [unlock], generation=generation)

    async def _clean(self, state: QueueState, _: bytes) -> Pass:
        return Pass(await clean_queue(QueueHandle(self._runtime, state), late=ORPHAN_AGE))

    async def _reassign(self, state: QueueState, record: bytes) -> Pass:
        handle = QueueHandle(self._runtime, state)
        reaped, resumed = await reassign_neglected(handle, fact_of(record, "resumed"))
        return Pass(Cleaned(queue=state.name, reaped=reaped), {"node": self._runtime.node, "resumed": resumed})

    async def _clean_root(self, _: bytes) -> Pass:
        return Pass(await clean_root(self._runtime, self._runtime.server_clock.now()))


def interval_of(state: QueueState) -> float:
    """Return the interval between two clean-ups of a queue, seconds."""
    every = state.config.clean_every
    return every if isinstance(every, float) else CLEAN_EVERY


def reap_interval_of(state: QueueState) -> float:
    """Return the interval between two checks for messages that their nodes have not taken, seconds."""
    every = state.config.reap_every
    return every if isinstance(every, float) else REAP_EVERY
