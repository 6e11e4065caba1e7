"""What a worker says of its listeners when it starts."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from aiozkqueue import Listener

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.queue.background import Service

log: Final = logging.getLogger(__name__)


def announce(services: Sequence[Service]) -> None:
    """Log a line a listener: its queue, handler and concurrency; and how many there are, of several."""
    listeners: list[Service] = [one for one in services if isinstance(one, Listener)]
    if len(listeners) > 1:
        log.info("starting %d listeners", len(listeners))
    for one in listeners:
        log.info("starting %r", one)
