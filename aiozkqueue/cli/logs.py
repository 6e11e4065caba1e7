"""The log of a service of the command, on stderr: for terminals and for programs that read lines."""

from __future__ import annotations

import json
import logging
import logging.config
import tomllib
from configparser import Error as IniError
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from aiozkqueue.cli.output import visible
from aiozkqueue.errors import InvalidOptionError

if TYPE_CHECKING:
    from pathlib import Path

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
#: The same for one of several processes that share stderr.
_FORMAT_OF_SEVERAL = "%(asctime)s %(levelname)s [%(process)d] %(name)s: %(message)s"


class VisibleFormatter(logging.Formatter):
    """Escapes unprintable characters in a message, so that data stored in ZooKeeper cannot control a terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """Format the line; a traceback follows it as it is."""
        return visible(super().formatMessage(record))

    def formatException(self, ei: logging._SysExcInfoType) -> str:  # noqa: N802 - logging's own name
        """Format a traceback; its last line may repeat stored data."""
        return "\n".join(map(visible, super().formatException(ei).split("\n")))


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON, with its extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the record."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        fields |= {name: value for name, value in vars(record).items() if name not in _STANDARD and name not in fields}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


#: The attributes of every record; the others are extra fields.
_STANDARD: Final = frozenset({*vars(logging.makeLogRecord({})), "asctime"})


def start_logs(level: str, form: Literal["text", "json"], file: Path | None, *, several: bool = False) -> None:
    """Log everything from this level on to stderr, or as a file says.

    A line of JSON has the id of the process; a line of text has it if ``several`` processes write to the same stderr.

    Raises:
        InvalidOptionError: the file does not configure logging.
    """
    if file is not None:
        _configure_logs(file)
        return
    handler = logging.StreamHandler()
    text = _FORMAT_OF_SEVERAL if several else _FORMAT
    handler.setFormatter(VisibleFormatter(text) if form == "text" else JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])


def _configure_logs(file: Path) -> None:
    """Configure logging by a file: a dictionary of `logging.config` in JSON or TOML, otherwise its INI format."""
    try:
        if file.suffix in {".json", ".toml"}:
            read = json.loads if file.suffix == ".json" else tomllib.loads
            # The loggers of this package exist already; a file that says nothing about them does not silence them.
            logging.config.dictConfig({"disable_existing_loggers": False, **read(file.read_text(encoding="utf-8"))})
        else:
            logging.config.fileConfig(file, disable_existing_loggers=False)
    except (ValueError, TypeError, KeyError, AttributeError, ImportError, IniError, RuntimeError) as error:
        msg = f"--log-config: {file} is not a configuration of Python's logging: {error}"
        raise InvalidOptionError(msg) from error
