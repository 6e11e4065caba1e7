"""Run services, listeners above all: signals stop them, one deadline for all."""

from __future__ import annotations

import asyncio
import logging
from signal import SIGINT, SIGTERM, Signals
from typing import TYPE_CHECKING, Any, Final

from .options import seconds

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from .background import Service
    from .options import Seconds

log: Final = logging.getLogger(__name__)


async def run(
    *services: Service, signals: Collection[Signals] = (SIGTERM, SIGINT), drain_timeout: Seconds = 25
) -> None:
    """Serve until a signal comes, all services stop, or one of them dies; then stop all together.

    Services are listeners, and what else has ``run``, ``stop`` and ``abort``, as `aiozkqueue.schedule.Scheduler`. What
    the first service that died raised is raised here.

    The first signal stops claiming and lets handlers finish within ``drain_timeout`` seconds, together; then, or at
    the second signal, they are cancelled and their messages go back at once.

    Raises:
        InvalidOptionError: a bad ``drain_timeout``.
        as `Listener.run`.
    """
    limit = seconds(drain_timeout, "drain_timeout")
    stop, hard = asyncio.Event(), asyncio.Event()

    def on_signal(number: Signals) -> None:
        if stop.is_set():
            log.info("%s: cancelling the handlers", number.name)
        else:
            within = "as long as they like" if limit is None else f"for up to {limit:g} s"
            log.info("%s: stopping; handlers may run on %s, a second signal cancels them", number.name, within)
        (hard if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in signals:
        loop.add_signal_handler(number, on_signal, number)
    served = [asyncio.ensure_future(service.run()) for service in services]
    stopping, aborting = asyncio.ensure_future(stop.wait()), asyncio.ensure_future(hard.wait())
    try:
        await _until(served, stopping)
        for service in services:
            service.stop()
        await _drain(services, served, aborting, limit)
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
        stopping.cancel()
        aborting.cancel()
        for service in services:
            service.abort()
        outcomes = await asyncio.gather(*served, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
            raise outcome


async def _drain(
    services: Sequence[Service],
    served: Sequence[asyncio.Future[None]],
    aborting: asyncio.Future[Any],
    limit: float | None,
) -> None:
    """Wait until all have finished, for so many seconds, or until they are not to; tell who has not in time."""
    pending = [one for one in served if not one.done()]
    if not pending:
        return
    drained = asyncio.gather(*pending, return_exceptions=True)
    await asyncio.wait((drained, aborting), timeout=limit, return_when=asyncio.FIRST_COMPLETED)
    for service, one in zip(services, served, strict=True):
        if not one.done() and not aborting.done():
            log.warning("%r: handlers did not finish within %g s and are cancelled", service, limit)


async def _until(served: Sequence[asyncio.Future[None]], stopping: asyncio.Future[Any]) -> None:
    """Wait until one dies, all are done, or a signal comes."""
    while not stopping.done():
        pending = [one for one in served if not one.done()]
        if not pending or any(one.done() and not one.cancelled() and one.exception() for one in served):
            return
        await asyncio.wait((*pending, stopping), return_when=asyncio.FIRST_COMPLETED)
