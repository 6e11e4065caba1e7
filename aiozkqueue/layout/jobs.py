"""Stored recurring jobs: ``<root>/.schedule/<name>``, one JSON object each.

``{"cron": "0 3 * * *", "zone": "Europe/Berlin", "queue": "reports", "body": "…", "options": {…}, "missed": "last",
"limit": 100, "tolerance": 60.0, "paused": false, "last": <ms>}``. A payload that is not UTF-8 is stored as
``body_base64``. A ``ttl`` of null in the options is endless. ``last`` is the last occurrence that has been decided:
put, or skipped. It is set, at the version read, by the same multi that puts the message. ``ran`` is the last occurrence
that was put, or left out because of its unique key; it is not there before the first one.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

from pydantic import AfterValidator, Base64Bytes, BaseModel, ConfigDict, Field, JsonValue, ValidationError

from aiozkqueue.errors import InvalidOptionError, InvalidScheduleError

from .fields import LAST_MOMENT, OBJECT_LIMIT, no_fields, read_object, unknown_fields, unusable, write_object
from .paths import check_queue_name, check_root

if TYPE_CHECKING:
    from collections.abc import Mapping

Missed = Literal["skip", "last", "all"]

MOST_MISSED: Final = 1000
"""Maximum number of missed occurrences that ``missed="all"`` puts later."""

LONGEST_CRON: Final = 1000
"""Maximum number of characters of a cron expression."""

_WHAT: Final = "a recurring job"


def check_length(cron: str) -> None:
    """Refuse a cron expression that is too long to be read again. Raises: InvalidScheduleError."""
    if len(cron) > LONGEST_CRON:
        raise InvalidScheduleError(
            f"the cron expression has {len(cron)} characters, more than {LONGEST_CRON}: leave out repetitions"
        )


class SchedulePaths:
    """The znodes of the jobs. Raises: InvalidOptionError: see `check_root`."""

    __slots__ = ("base",)

    def __init__(self, root: str) -> None:
        check_root(root)
        self.base: Final = f"{root}/.schedule"

    def job(self, name: str) -> str:
        """Return the path of a job. Raises: InvalidNameError."""
        return f"{self.base}/{check_queue_name(name, 'job')}"


@dataclass(frozen=True, slots=True)
class JobRecord:
    """The stored record of a job."""

    cron: str
    zone: str
    queue: str
    body: bytes
    last: int
    """Milliseconds since 1970, ZooKeeper's time."""
    options: Mapping[str, JsonValue] = field(default_factory=no_fields)
    missed: Missed = "last"
    limit: int = 100
    tolerance: float = 60.0
    paused: bool = False
    ran: int | None = None
    """The last occurrence that was not skipped, as ``last``; None: there was none yet."""
    unknown: Mapping[str, JsonValue] = field(default_factory=no_fields)
    """Fields of other versions, kept when the record is rewritten."""

    def encode(self) -> bytes:
        """Return the bytes to store.

        Raises:
            InvalidScheduleError: the cron expression is too long to be read again.
            InvalidOptionError: they exceed 64 KiB.
        """
        check_length(self.cron)
        fields: dict[str, JsonValue] = {
            **self.unknown,
            "cron": self.cron,
            "zone": self.zone,
            "queue": self.queue,
            "missed": self.missed,
            "limit": self.limit,
            "tolerance": self.tolerance,
            "paused": self.paused,
            "last": self.last,
        }
        try:
            fields["body"] = self.body.decode()
        except UnicodeDecodeError:
            fields["body_base64"] = b64encode(self.body).decode()
        if self.ran is not None:
            fields["ran"] = self.ran
        if self.options:
            fields["options"] = dict(self.options)
        data = write_object(fields)
        if len(data) > OBJECT_LIMIT:
            raise InvalidOptionError(
                f"{_WHAT} takes {len(data)} bytes, more than {OBJECT_LIMIT}: store the payload elsewhere"
            )
        return data

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a job.

        Raises:
            MalformedError: it is not a job that this version can follow.
        """
        fields = read_object(data, _WHAT)
        try:
            read = _Stored.model_validate(fields)
        except ValidationError as error:
            raise unusable(_WHAT, error) from None  # its cause shows payloads
        for known in _Stored.model_fields:
            fields.pop(known, None)
        return cls(
            cron=read.cron,
            zone=read.zone,
            queue=read.queue,
            body=read.body.encode() if read.body_base64 is None else read.body_base64,
            last=read.last,
            options=read.options,
            missed=read.missed,
            limit=read.limit,
            tolerance=read.tolerance,
            paused=read.paused,
            ran=read.ran,
            unknown=unknown_fields(fields, _WHAT),
        )


def _with_headers(options: dict[str, JsonValue]) -> dict[str, JsonValue]:
    headers = options.get("headers", {})
    if not isinstance(headers, dict) or not all(isinstance(text, str) for text in headers.values()):
        msg = "headers is not an object of strings"
        raise ValueError(msg)
    return options


class _Stored(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)

    cron: Annotated[str, Field(max_length=LONGEST_CRON)]
    zone: Annotated[str, Field(max_length=255)]
    queue: str
    body: str = ""
    body_base64: Annotated[Base64Bytes, Field(strict=False)] | None = None
    options: Annotated[dict[str, JsonValue], AfterValidator(_with_headers)] = {}
    missed: Missed
    limit: Annotated[int, Field(ge=1, le=MOST_MISSED)]
    tolerance: Annotated[float, Field(ge=0)]
    paused: bool
    last: Annotated[int, Field(ge=0, le=LAST_MOMENT)]
    ran: Annotated[int, Field(ge=0, le=LAST_MOMENT)] | None = None
