"""Logs the listeners of a worker when it starts."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from aiozkqueue import Listener

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.queue.background import Service

log: Final = logging.getLogger(__name__)


def announce(services: Sequence[Service]) -> None:
    """Log one line per listener: its queue, handler and concurrency; for several, also their number."""
    listeners: list[Service] = [one for one in services if isinstance(one, Listener)]
    if len(listeners) > 1:
        log.info("starting %d listeners", len(listeners))
    for one in listeners:
        log.info("starting %r", one)
