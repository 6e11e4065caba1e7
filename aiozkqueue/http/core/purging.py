"""Purges that outlast their requests.

To empty a queue of a million messages takes minutes. A purge runs as a task of the server's session, and a request
waits a few seconds for its end. A request that comes while one runs has another pass follow, which covers what was put
since. When the server dies the rest of the messages stays: the client repeats the request, at any server.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import QueueError, SessionClosedError
from aiozkqueue.queue.internals import core_of
from aiozkqueue.zookeeper import ZooKeeperError

if TYPE_CHECKING:
    from aiozkqueue.queue.queue import Queue
    from aiozkqueue.queue.session import QueueSession

log: Final = logging.getLogger(__name__)

#: Seconds that a request waits for its purge.
PATIENCE: Final = 4.0
#: Purges that run at a time in one server; others wait for their turn.
TOGETHER: Final = 2


class _Run:
    """The purge of one queue, a pass after the other while requests ask for it."""

    def __init__(self) -> None:
        self.following: asyncio.Future[None] | None = None
        """The end of a pass that has not begun; None: nobody has asked for one."""


class Purges:
    """The purges of one server."""

    def __init__(self, session: QueueSession) -> None:
        self._session = session
        self._runs: dict[str, _Run] = {}
        self._turns = asyncio.Semaphore(TOGETHER)

    async def purge(self, queue: Queue[bytes]) -> bool:
        """Empty a queue of all that is there now; return whether that is done, or goes on.

        Raises: AccessDeniedError, PayloadError, and what else a purge fails with; the rest stays then.
        """
        run = self._runs.get(queue.name)
        if run is None:
            run = self._runs[queue.name] = _Run()
            run.following = asyncio.get_running_loop().create_future()
            core_of(self._session).tasks.spawn(self._go, run, queue, name=f"purge of {queue.name}")
        if run.following is None:
            run.following = asyncio.get_running_loop().create_future()
        end = run.following
        await asyncio.wait([end], timeout=PATIENCE)
        if not end.done():
            return False
        end.result()
        return True

    async def _go(self, run: _Run, queue: Queue[bytes]) -> None:
        end: asyncio.Future[None] | None = None
        try:
            async with self._turns:
                while run.following is not None:
                    end, run.following = run.following, None
                    await queue.purge()
                    end.set_result(None)
        except (QueueError, ZooKeeperError) as error:
            log.warning("queue %s: its purge has ended before it was empty: %s", queue.name, error)
            _fail(error, end, run.following)
        finally:
            del self._runs[queue.name]
            msg = f"queue {queue.name!r}: the server stops before the purge has ended; repeat it"
            _fail(SessionClosedError(msg), end, run.following)


def _fail(error: Exception, *ends: asyncio.Future[None] | None) -> None:
    for end in ends:
        if end is not None and not end.done():
            end.set_exception(error)
            end.exception()  # nobody may wait for it any longer, which is no defect
