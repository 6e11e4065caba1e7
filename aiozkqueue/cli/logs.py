"""What a service of the command logs, on stderr: for terminals and for programs that read lines."""

from __future__ import annotations

import logging

from aiozkqueue.cli.output import visible

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class VisibleFormatter(logging.Formatter):
    """Escapes what is not printable in a message, so that nothing stored in ZooKeeper steers a terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """Format the line; a traceback follows it as it is."""
        return visible(super().formatMessage(record))

    def formatException(self, ei: logging._SysExcInfoType) -> str:  # noqa: N802 - logging's own name
        """Format a traceback, whose last line may repeat what was stored."""
        return "\n".join(map(visible, super().formatException(ei).split("\n")))


def log_to_stderr(level: str) -> None:
    """Log everything from this level on."""
    handler = logging.StreamHandler()
    handler.setFormatter(VisibleFormatter(_FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler])
