"""Logs the start and the end of each service of a worker, with its figures."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from aiozkqueue.session.background import Service

log: Final = logging.getLogger(__name__)


class Announced:
    """A service whose start and end are logged."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def __str__(self) -> str:
        return str(self._service)

    async def run(self) -> None:
        """See `Service`."""
        log.info("started: %s", self)
        start = time.monotonic()
        try:
            await self._service.run()
        finally:
            summary = getattr(self._service, "_summary", None)
            figures = "" if summary is None else f": {summary()}"
            log.info("stopped: %s%s in %.0f s", self, figures, time.monotonic() - start)

    def stop(self) -> None:
        """See `Service`."""
        self._service.stop()

    def abort(self) -> None:
        """See `Service`."""
        self._service.abort()
