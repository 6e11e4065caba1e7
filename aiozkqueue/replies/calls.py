"""The calls of one session that wait for their replies."""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from aiozkqueue.errors import AccessDeniedError, GivenUpError, NoReplyError
from aiozkqueue.layout.replies import FAILED, REPLY, Failure
from aiozkqueue.zookeeper import (
    PAGE,
    AuthFailedError,
    ClientClosedError,
    ConnectionLossError,
    Delete,
    MultiError,
    NoAuthError,
    NoNodeError,
    SetData,
    ZooKeeperError,
    read_pages,
    read_separately,
)
from aiozkqueue.zookeeper import SessionExpiredError as ZooKeeperSessionExpiredError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.codec import Codec
    from aiozkqueue.errors import QueueError
    from aiozkqueue.layout import ClientPaths
    from aiozkqueue.runtime.clock import Clock
    from aiozkqueue.runtime.tasks import TaskOwner
    from aiozkqueue.zookeeper import Node, Versioned, ZooKeeper

log: Final = logging.getLogger(__name__)

#: Seconds between two writes of the client's znode while calls wait: the clean-up removes it after a day without any.
KEPT: Final = 3600.0
#: Seconds until the answers are read again after a refusal.
AGAIN: Final = 5.0
#: The shortest time between two log records about such refusals, seconds.
LOGGED_EVERY: Final = 300.0


class Calls:
    """Waits for the replies below the client's znode, by one watch from the first call on."""

    def __init__(
        self, zookeeper: ZooKeeper, paths: ClientPaths, tasks: TaskOwner, clock: Clock, about: bytes = b""
    ) -> None:
        self._zookeeper = zookeeper
        self._folder = paths.base
        self._tasks = tasks
        self._clock = clock
        self._about = about
        self._waiting: dict[str, asyncio.Future[bytes]] = {}
        self._changed = asyncio.Event()
        self._serving = False
        self._left: set[str] = set()  # the answers that ZooKeeper does not remove
        self.codecs: dict[Any, Codec[Any]] = {}
        """The codecs of the types of replies."""

    def expect(self, call: str) -> asyncio.Future[bytes]:
        """Return a future of the reply to a call, which the caller must `forget`."""
        if not self._serving:
            self._serving = True
            self._tasks.spawn(self._serve, name="replies")
            self._tasks.spawn(self._keep, name="keeping of replies")
        future = self._waiting[call] = asyncio.get_running_loop().create_future()
        return future

    def forget(self, call: str) -> None:
        """Wait no longer. A late reply is removed when it is seen."""
        self._waiting.pop(call, None)

    async def reply(self, future: asyncio.Future[bytes], due: float, message_id: str) -> bytes:
        """Wait for a reply until a moment of the monotonic clock.

        Raises: NoReplyError, GivenUpError, SessionClosedError; AccessDeniedError: the servers refuse the credentials.
        """

        def expire() -> None:
            why = f"message {message_id}: no reply in time; its handler may still run, or may not have begun"
            _fail(future, NoReplyError(why, message_id))

        timer = self._clock.call_later(max(0.0, due - self._clock.monotonic()), expire)
        try:
            return await future
        finally:
            timer.cancel()

    def client_failed(self) -> None:
        """Fail all calls if the servers refuse the credentials: no watch reports that."""
        self._changed.set()

    def close(self, error: QueueError) -> None:
        """Fail all calls."""
        for future in self._waiting.values():
            _fail(future, error)

    async def _serve(self) -> None:
        """Read the answers as they come; after a refusal, try again every few seconds."""
        logged_at = -math.inf
        while True:
            try:
                await self._watch()
            except AuthFailedError as error:
                why = f"no reply can be read: {error}; the message was put, and may still be handled"
                self.close(AuthFailedError(why))
                return
            except ClientClosedError:
                return
            except ZooKeeperError as error:
                if self._clock.monotonic() - logged_at >= LOGGED_EVERY:
                    logged_at = self._clock.monotonic()
                    advice = f"; {error.advice}" if isinstance(error, NoAuthError) else ""
                    log.warning("calls get no replies; the next try is in %g s: %s%s", AGAIN, error, advice)
            await asyncio.sleep(AGAIN)

    async def _watch(self) -> None:
        """Read the answers as they come, until that is refused."""
        watch = await self._zookeeper.watch(self._folder, lambda _: self._changed.set())
        try:
            self._changed.set()  # a reply may have come before the watch
            while True:
                await self._changed.wait()
                self._changed.clear()
                with suppress(ConnectionLossError, ZooKeeperSessionExpiredError):  # the watch reports a missed event
                    await self._collect()
        finally:
            watch.cancel()

    async def _keep(self) -> None:
        """Write the client's znode from time to time while calls wait, so that it is not removed with their replies."""
        due = asyncio.Event()
        while True:
            due.clear()
            timer = self._clock.call_later(KEPT, due.set)
            try:
                await due.wait()
            finally:
                timer.cancel()
            if not self._waiting:
                continue
            try:
                await self._zookeeper.multi([SetData(self._folder, self._about)])
            except ClientClosedError:
                return
            except ZooKeeperError as error:
                log.info("%s could not be written, and is tried again in an hour: %s", self._folder, error)

    async def _collect(self) -> None:
        """Read the replies and failures that are waited for, and remove all."""
        try:
            names = await self._zookeeper.children(self._folder)
        except NoNodeError:
            return
        self._left.intersection_update(names)
        answers = [name for name in names if name.startswith((REPLY, FAILED)) and name not in self._left]
        wanted = [name for name in answers if name.partition("-")[2] in self._waiting]
        for name, node in zip(wanted, await self._read([f"{self._folder}/{name}" for name in wanted]), strict=True):
            future = self._waiting.get(name.partition("-")[2])
            if node is None or future is None or future.done():
                continue
            if isinstance(node, NoAuthError):
                why = f"the message was handled, and its reply cannot be read: {node}; {node.advice}"
                _fail(future, AccessDeniedError(why))
            elif name.startswith(REPLY):
                future.set_result(node.data)
            else:
                message_id, reason = Failure.decode(node.data)
                why = f"message {message_id} was given up, so no handler replies: {reason}"
                _fail(future, GivenUpError(why, message_id, reason))
        for start in range(0, len(answers), PAGE):
            await self._remove(answers[start : start + PAGE])

    async def _read(self, paths: list[str]) -> Sequence[Node | Versioned | NoAuthError | None]:
        """Read the answers at these paths; an unreadable one is replaced by its error."""
        try:
            return await read_pages(self._zookeeper, paths)
        except NoAuthError:
            found = await read_separately(self._zookeeper, [[path] for path in paths])
            return [each if isinstance(each, NoAuthError) else each[0] for each in found]

    async def _remove(self, names: list[str]) -> None:
        try:
            await self._zookeeper.multi([Delete(f"{self._folder}/{name}") for name in names])
        except MultiError as refusal:  # the clean-up has removed some
            for name in names if len(names) > 1 else ():
                await self._remove([name])
            if len(names) == 1 and not isinstance(refusal.error, NoNodeError):
                self._left.update(names)  # it is not tried again with each further answer


def _fail(future: asyncio.Future[bytes], error: QueueError) -> None:
    """Fail a call, unless it has its reply."""
    if not future.done():
        future.set_exception(error)
        future.exception()  # marks the error as retrieved, since the caller may not wait yet, or no longer
