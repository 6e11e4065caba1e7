"""The cancellation of handlers whose messages were cancelled while held, in any process: running, or about to start."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aiozkqueue.layout.cancelled import cancelled_ids
from aiozkqueue.zookeeper import ClientClosedError, NoAuthError, NoNodeError, until_answered

if TYPE_CHECKING:
    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.zookeeper import ZooKeeper

log: Final = logging.getLogger(__name__)


class Interruptions:
    """Cancels the tasks of one listener that handle cancelled messages."""

    def __init__(self, zookeeper: ZooKeeper, path: str) -> None:
        self._zookeeper = zookeeper
        self._path = path
        self._changed = asyncio.Event()
        self.running: dict[Claim, asyncio.Task[Any] | None] = {}
        """The tasks whose handlers run, by their messages."""
        self.cancelled: frozenset[str] = frozenset()
        """The messages that had been cancelled at the last read."""

    def cancelled_before_start(self, claim: Claim) -> bool:
        """Return whether a message was cancelled before its handler could begin, which is then not called."""
        if claim.id not in self.cancelled:
            return False
        log.info(
            "queue %s: message %s was cancelled before its handler began",
            claim.state.name,
            claim.id,
            extra=claim.log_ids(),
        )
        return True

    async def watch(self) -> None:
        """Cancel tasks as messages are cancelled, until cancelled itself.

        Raises: ServerError, ProtocolError, AuthFailedError: of the zookeeper package.
        """
        watch = None
        try:
            watch = await self._zookeeper.watch(self._path, lambda _: self._changed.set())
            self._changed.set()  # a message may have been claimed and cancelled before the watch
            while True:
                await self._changed.wait()
                self._changed.clear()
                await self._read_cancelled()
        except NoAuthError as error:
            log.warning("handlers are not cancelled with their messages, because of an ACL: %s", error)
        except ClientClosedError:
            return
        finally:
            if watch is not None:
                watch.cancel()

    async def _read_cancelled(self) -> None:
        """Read which messages have been cancelled."""
        try:
            node = await until_answered(self._zookeeper, partial(self._zookeeper.read, self._path))
        except NoNodeError:
            return
        self.cancelled = frozenset(cancelled_ids(node.data))
        for claim, task in list(self.running.items()):
            if claim.id in self.cancelled and task is not None:
                del self.running[claim]
                log.info(
                    "queue %s: message %s was cancelled while its handler ran; the handler is cancelled",
                    claim.state.name,
                    claim.id,
                    extra=claim.log_ids(),
                )
                task.cancel(f"message {claim.id} was cancelled")
