"""Purges that outlast their requests.

Emptying a queue of a million messages takes minutes. A purge runs as a task of the server's session, and a request
waits a few seconds for its end. A request that arrives during a purge adds another pass, which removes the messages put
since. A request that is repeated with the token of its pass waits for that pass. If the server dies, the remaining
messages stay; the client repeats the request at any server.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.errors import QueueError, SessionClosedError
from aiozkqueue.session.internals import core_of
from aiozkqueue.zookeeper import ZooKeeperError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiozkqueue.session.queue import Queue
    from aiozkqueue.session.session import QueueSession

log: Final = logging.getLogger(__name__)

#: Seconds for which a request waits for its purge.
PURGE_TIMEOUT: Final = 4.0
#: Maximum number of concurrent purges in one server; others wait.
TOGETHER: Final = 2
#: Maximum number of passes whose tokens are known.
REMEMBERED: Final = 1000


class _Pass(NamedTuple):
    """One purge of a queue."""

    token: str
    end: asyncio.Future[None]


class _Run:
    """The purge of one queue, in passes while there are requests."""

    def __init__(self) -> None:
        self.following: _Pass | None = None
        """The pass that has not begun; None: there is no request for a pass."""


class Purges:
    """The purges of one server."""

    def __init__(self, session: QueueSession) -> None:
        self._session = session
        self._runs: dict[str, _Run] = {}
        self._turns = asyncio.Semaphore(TOGETHER)
        self._passes: dict[tuple[str, str], _Pass] = {}
        """The last passes, by their queue and their token."""

    async def purge(self, queue: Queue[bytes]) -> bool:
        """Remove all current messages of a queue. Return whether that is done; otherwise it continues.

        Raises: AccessDeniedError, PayloadError, and other errors of a purge; the remaining messages stay.
        """
        return await self.wait(queue, ()) is None

    async def wait(self, queue: Queue[bytes], tokens: Iterable[str]) -> str | None:
        """Wait for the purge with one of these tokens, or for a new one; return its token if it continues, else None.

        A client that repeats its request with the token waits for the messages of its first request only. Otherwise it
        would never be done while producers put messages as fast as the purge removes them.

        Raises: as `purge`.
        """
        known = (self._passes.get((queue.name, token)) for token in tokens)
        asked = next((each for each in known if each is not None), None) or self._new_pass(queue)
        await asyncio.wait([asked.end], timeout=PURGE_TIMEOUT)
        if not asked.end.done():
            return asked.token
        asked.end.result()
        return None

    def _new_pass(self, queue: Queue[bytes]) -> _Pass:
        """Return the next pass that begins."""
        run = self._runs.get(queue.name)
        if run is None:
            run = self._runs[queue.name] = _Run()
            core_of(self._session).tasks.spawn(self._purge, run, queue, name=f"purge of {queue.name}")
        if run.following is None:
            token = core_of(self._session).ids.next()
            run.following = _Pass(token, asyncio.get_running_loop().create_future())
            self._passes[queue.name, token] = run.following
            while len(self._passes) > REMEMBERED:
                del self._passes[next(iter(self._passes))]
        return run.following

    async def _purge(self, run: _Run, queue: Queue[bytes]) -> None:
        current: _Pass | None = None
        try:
            async with self._turns:
                while run.following is not None:
                    current, run.following = run.following, None
                    await queue.purge()
                    current.end.set_result(None)
        except (QueueError, ZooKeeperError) as error:
            log.warning("queue %s: the purge failed before the queue was empty: %s", queue.name, error)
            _fail(error, current, run.following)
        finally:
            del self._runs[queue.name]
            msg = f"queue {queue.name!r}: the server stops before the purge has ended; repeat it"
            _fail(SessionClosedError(msg), current, run.following)


def _fail(error: Exception, *passes: _Pass | None) -> None:
    for each in passes:
        if each is not None and not each.end.done():
            each.end.set_exception(error)
            each.end.exception()  # it is not a defect if no request waits for it any longer
