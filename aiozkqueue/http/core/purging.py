"""Purges that outlast their requests.

Emptying a queue of a million messages takes minutes. A purge runs as a task of the server's session, and a request
waits a few seconds for its end. A request that arrives during a purge adds another pass, which removes the messages put
since. If the server dies, the remaining messages stay; the client repeats the request at any server.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import QueueError, SessionClosedError
from aiozkqueue.session.internals import core_of
from aiozkqueue.zookeeper import ZooKeeperError

if TYPE_CHECKING:
    from aiozkqueue.session.queue import Queue
    from aiozkqueue.session.session import QueueSession

log: Final = logging.getLogger(__name__)

#: Seconds for which a request waits for its purge.
PURGE_TIMEOUT: Final = 4.0
#: Maximum number of concurrent purges in one server; others wait.
TOGETHER: Final = 2


class _Run:
    """The purge of one queue, in passes while there are requests."""

    def __init__(self) -> None:
        self.following: asyncio.Future[None] | None = None
        """The future of a pass that has not begun; None: there is no request for a pass."""


class Purges:
    """The purges of one server."""

    def __init__(self, session: QueueSession) -> None:
        self._session = session
        self._runs: dict[str, _Run] = {}
        self._turns = asyncio.Semaphore(TOGETHER)

    async def purge(self, queue: Queue[bytes]) -> bool:
        """Remove all current messages of a queue. Return whether that is done; otherwise it continues.

        Raises: AccessDeniedError, PayloadError, and other errors of a purge; the remaining messages stay.
        """
        run = self._runs.get(queue.name)
        if run is None:
            run = self._runs[queue.name] = _Run()
            run.following = asyncio.get_running_loop().create_future()
            core_of(self._session).tasks.spawn(self._purge, run, queue, name=f"purge of {queue.name}")
        if run.following is None:
            run.following = asyncio.get_running_loop().create_future()
        end = run.following
        await asyncio.wait([end], timeout=PURGE_TIMEOUT)
        if not end.done():
            return False
        end.result()
        return True

    async def _purge(self, run: _Run, queue: Queue[bytes]) -> None:
        end: asyncio.Future[None] | None = None
        try:
            async with self._turns:
                while run.following is not None:
                    end, run.following = run.following, None
                    await queue.purge()
                    end.set_result(None)
        except (QueueError, ZooKeeperError) as error:
            log.warning("queue %s: the purge failed before the queue was empty: %s", queue.name, error)
            _fail(error, end, run.following)
        finally:
            del self._runs[queue.name]
            msg = f"queue {queue.name!r}: the server stops before the purge has ended; repeat it"
            _fail(SessionClosedError(msg), end, run.following)


def _fail(error: Exception, *ends: asyncio.Future[None] | None) -> None:
    for end in ends:
        if end is not None and not end.done():
            end.set_exception(error)
            end.exception()  # it is not a defect if no request waits for it any longer
