"""Services that run until they are stopped, alone or while the body of their ``async with`` runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from aiozkqueue.errors import QueueError, SessionClosedError
from aiozkqueue.runtime.tasks import wait_settled

if TYPE_CHECKING:
    from .core import SessionCore


class Service(Protocol):
    """A service that `aiozkqueue.run` runs: a listener or a scheduler."""

    async def run(self) -> None:
        """Serve until stopped. Raises errors that waiting does not resolve."""
        ...

    def stop(self) -> None:
        """Start no more work, and finish the work that runs. Idempotent."""
        ...

    def abort(self) -> None:
        """Stop, and cancel the work that runs. Idempotent."""
        ...


class Background:
    """A service that runs in a task of the session while the body of its ``async with`` runs."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._body = asyncio.current_task()
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._failure: BaseException | None = None
        self._session: SessionCore | None = None
        """The session, if it has cancelled the service because it ends."""
        self._left = False
        self._cancelled_body = False

    def start(self, runtime: SessionCore) -> None:
        """Start the service."""
        runtime.check()
        runtime.tasks.spawn(self._serve, runtime, name=type(self._service).__name__.lower())

    async def _serve(self, runtime: SessionCore) -> None:
        failure: BaseException | None = None
        try:
            await self._service.run()
        except asyncio.CancelledError as cancelled:
            if not self._left:
                failure = cancelled
                self._session = runtime
            raise
        except BaseException as error:  # noqa: BLE001 - raised where the block is left
            failure = error
        finally:
            self._done(failure)

    def _done(self, failure: BaseException | None) -> None:
        self._failure = failure
        if not self._ended.done():
            self._ended.set_result(None)
        if failure is not None and not self._left and self._body is not None:
            self._cancelled_body = True
            self._body.cancel("the service that this block waits for has died")

    async def leave(self, error: BaseException | None) -> None:
        """Stop the service, wait for its end, and raise its failure; ``error`` ended the body."""
        self._left = True
        if isinstance(error, asyncio.CancelledError) and not self._cancelled_body:
            self._service.abort()  # a body that is cancelled does not wait for handlers to drain
        else:
            self._service.stop()
        try:
            await asyncio.shield(self._ended)
        except asyncio.CancelledError:
            self._service.abort()
            await wait_settled(self._ended)
            raise
        if self._failure is None:
            return
        if self._cancelled_body and self._body is not None:
            remaining = self._body.uncancel()
            if remaining and isinstance(error, asyncio.CancelledError):
                return  # another caller has cancelled it too
        if error is None or isinstance(error, asyncio.CancelledError):
            raise self._failure if self._session is None else _end_of(self._session)


def _end_of(runtime: SessionCore) -> QueueError:
    """Return why a session has cancelled its tasks."""
    try:
        runtime.check()
    except QueueError as error:
        return error
    return SessionClosedError("a task of the session has failed; open another with aiozkqueue.connect()")
