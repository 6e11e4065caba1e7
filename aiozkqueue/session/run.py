"""Runs services, mainly listeners: signals stop them, with one deadline for all."""

from __future__ import annotations

import asyncio
import logging
from signal import SIGINT, SIGTERM, Signals
from typing import TYPE_CHECKING, Any, Final, cast

from aiozkqueue.arguments import collection, seconds
from aiozkqueue.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from aiozkqueue.arguments import Seconds

    from .background import Service

log: Final = logging.getLogger(__name__)


async def run(
    *services: Service, signals: Collection[Signals] = (SIGTERM, SIGINT), drain_timeout: Seconds = 25
) -> None:
    """Serve until a signal arrives, all services stop, or one of them fails; then stop all together.

    Services are listeners and other objects with ``run``, ``stop`` and ``abort``, such as
    `aiozkqueue.schedule.Scheduler`. The error of the first service that fails is raised here.

    The first signal stops claiming, and gives all handlers ``drain_timeout`` seconds to finish. Then, or at the second
    signal, they are cancelled, and their messages are released at once. If a listener has its own, shorter
    ``drain_timeout``, its handlers are cancelled after that time.

    Only the main thread can handle signals; in another thread, give ``signals=()``.

    Raises:
        InvalidOptionError: a bad ``drain_timeout``, a service without ``run``, ``stop`` and ``abort``, or signals that
            are not `signal.Signals`.
        RuntimeError: there are ``signals``, and this is not the main thread.
        as `Listener.run`.
    """
    limit = seconds(drain_timeout, "drain_timeout")
    _check(services, signals)
    stop, hard = asyncio.Event(), asyncio.Event()

    def on_signal(number: Signals) -> None:
        if stop.is_set():
            log.info("%s: cancelling the handlers", number.name)
        else:
            within = "without a time limit" if limit is None else f"within {limit:g} s"
            log.info("%s: stopping; handlers may finish %s; a second signal cancels them", number.name, within)
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
        stopping.cancel()
        aborting.cancel()
        for service in services:
            service.abort()
        try:
            outcomes = await asyncio.gather(*served, return_exceptions=True)
        finally:  # until here, a further signal would kill the process while it releases messages
            for number in signals:
                loop.remove_signal_handler(number)
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
            raise outcome


def _check(services: Iterable[object], signals: Collection[Signals]) -> None:
    """Check the arguments of `run`. Raises: InvalidOptionError."""
    for service in services:
        if not all(callable(getattr(service, name, None)) for name in ("run", "stop", "abort")):
            msg = f"run takes services, such as listeners, not {type(service).__name__}: give run(first, second)"
            raise InvalidOptionError(msg)
    for number in cast("Iterable[object]", collection(signals, "signals", "signals")):
        if not isinstance(number, Signals):
            msg = f"signals={number!r}: give members of signal.Signals, such as SIGTERM"
            raise InvalidOptionError(msg)


async def _drain(
    services: Sequence[Service],
    served: Sequence[asyncio.Future[None]],
    aborting: asyncio.Future[Any],
    limit: float | None,
) -> None:
    """Wait until all services have finished, the limit has passed, or they are aborted; log the late ones."""
    pending = [future for future in served if not future.done()]
    if not pending:
        return
    drained = asyncio.gather(*pending, return_exceptions=True)
    await asyncio.wait((drained, aborting), timeout=limit, return_when=asyncio.FIRST_COMPLETED)
    for service, future in zip(services, served, strict=True):
        if not future.done() and not aborting.done():
            log.warning("%s: handlers did not finish within %g s and are cancelled", service, limit)


async def _until(served: Sequence[asyncio.Future[None]], stopping: asyncio.Future[Any]) -> None:
    """Wait until one service fails, all are done, or a signal arrives."""
    while not stopping.done():
        pending = [future for future in served if not future.done()]
        if not pending or any(future.done() and not future.cancelled() and future.exception() for future in served):
            return
        await asyncio.wait((*pending, stopping), return_when=asyncio.FIRST_COMPLETED)
