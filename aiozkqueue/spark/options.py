"""The options of ``.option(...)``, checked before any job runs. Pure.

Options appear in plans, logs and pickles, so they contain no secrets. Each process reads credentials from the file
``authFile``, or from the environment (``AIOZKQUEUE_AUTH`` or ``AIOZKQUEUE_AUTH_FILE``).
"""

from __future__ import annotations

import enum
import re
from dataclasses import asdict, dataclass, replace
from datetime import timedelta, timezone
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.layout import check_queue_name, check_root
from aiozkqueue.moments import LONGEST_DELAY
from aiozkqueue.zookeeper import parse_hosts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import tzinfo

E = TypeVar("E", bound=enum.Enum)


class Content(enum.Enum):
    """The part of a queue that is read."""

    ITEMS = "items"
    DEAD_LETTERS = "deadletters"
    HISTORY = "history"


class Mode(enum.Enum):
    """The treatment of payloads that do not decode. The names are the same as in Spark's JSON reader."""

    PERMISSIVE = "permissive"
    """The columns are null. If the schema has the column of corrupt records, it contains the payload."""
    FAILFAST = "failfast"
    """The task and its job fail."""
    DEADLETTER = "deadletter"
    """The payload produces no row, and the message becomes a dead letter at the end of its batch. For streams."""


class _Starting(enum.Enum):
    """The start of a new checkpoint with a used ledger. Both values have the same meaning."""

    EARLIEST = "earliest"
    LEDGER = "ledger"


class _Switch(enum.Enum):
    OFF = "false"
    ON = "true"


#: Options of Spark itself, which it passes together with ours.
_SPARKS: Final = frozenset({"checkpointlocation", "queryname"})
#: The prefix of the options in CREATE TABLE, which Spark passes when it creates the table, and not when it reads it.
_OF_TABLE: Final = "option."
_SECRETS: Final = frozenset({"auth", "password", "user", "credentials"})
_SERVERS: Final = (
    "hosts",
    "root",
    "sessionTimeout",
    "connectTimeout",
    "outageTimeout",
    "tlsCa",
    "tlsCert",
    "tlsKey",
    "authFile",
)
_KNOWN: Final = {
    name.lower(): name
    for name in (
        *_SERVERS,
        "queue",
        "path",
        "content",
        "minPartitions",
        "mode",
        "columnNameOfCorruptRecord",
        "timeZone",
        "writeId",
        "txnAppId",
        "txnVersion",
        "idColumn",
        "pushDown",
        "rowsPerTransaction",
        "putTimeout",
        "group",
        "maxOffsetsPerTrigger",
        "maxBytesPerTrigger",
        "startingOffsets",
        "failOnDataLoss",
        "maxBatchAttempts",
    )
}


class Direction(enum.Enum):
    """A use of the format, as errors and logs name it."""

    READ = "a batch read"
    STREAM = "a stream"
    WRITE = "a batch write"
    SINK = "a stream sink"
    REJECTION = "a write of rejections"


_READS: Final = (Direction.READ, Direction.STREAM)
_WRITES: Final = (Direction.WRITE, Direction.SINK)
#: The options that only some uses have.
_USES: Final[dict[str, tuple[Direction, ...]]] = {
    "minPartitions": _READS,
    "mode": _READS,
    "columnNameOfCorruptRecord": _READS,
    "timeZone": _READS,
    "pushDown": (Direction.READ,),
    "maxOffsetsPerTrigger": (Direction.STREAM,),
    "maxBytesPerTrigger": (Direction.STREAM,),
    "startingOffsets": (Direction.STREAM,),
    "failOnDataLoss": (Direction.STREAM,),
    "maxBatchAttempts": (Direction.STREAM,),
    "group": (Direction.STREAM, Direction.REJECTION),
    "writeId": (Direction.WRITE,),
    "txnAppId": (Direction.WRITE,),
    "txnVersion": (Direction.WRITE,),
    "idColumn": _WRITES,
    "rowsPerTransaction": _WRITES,
    "putTimeout": _WRITES,
}
_MOST_ROWS: Final = 900
_MOST_PARTITIONS: Final = 10_000
_LONGEST_ID: Final = 1024
_UNITS: Final = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
#: As in Delta and in Spark's own limits: a signed number of 64 bits.
_LARGEST: Final = 2**63 - 1
#: ZooKeeper counts milliseconds in 31 bits.
_LONGEST_SESSION: Final = 2_147_482.0
_DIGITS: Final = re.compile("[0-9]{1,19}")
#: Up to 18 hours, as in Java.
_OFFSET: Final = re.compile("(?:GMT|UTC|UT)?([+-])(0?[0-9]|1[0-7]|18(?!:(?!00)))(?::([0-5][0-9]))?|Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """The ZooKeeper servers and the access to them."""

    hosts: str
    root: str = "/zms"
    session_timeout: float = 10.0
    connect_timeout: float = 15.0
    outage_timeout: float = 600.0
    """The time without a connection after which a driver, a task or a writer fails, seconds."""
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    auth_file: str | None = None

    def of(self, queue: str) -> Options:
        """Return the options of one queue."""
        return Options(**asdict(self), queue=queue)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Servers):
    """The options of a reader or writer."""

    queue: str
    content: Content = Content.ITEMS
    min_partitions: int = 1
    mode: Mode = Mode.PERMISSIVE
    corrupt: str = "_corrupt_record"
    time_zone: str = "UTC"
    """The time zone of timestamps that do not name one."""
    write_id: str | None = None
    txn_app: str | None = None
    """The application whose numbered write this is; see `txn_version`."""
    txn_version: int = 0
    """The number of the write. It is skipped if the application has completed a write with it or a higher one."""
    id_column: str | None = None
    """The column that identifies a row within a write or a micro-batch."""
    push_down: bool = False
    """Whether Spark may push filters down. Spark's own setting must also allow it."""
    rows: int = 500
    """The maximum number of rows in one write to ZooKeeper."""
    put_timeout: float = 60.0
    """How long to wait for capacity in a bounded queue, seconds."""
    group: str = "spark"
    """The group of the stream. Each group has its own ledger."""
    max_offsets: int | None = None
    """The maximum number of messages in a micro-batch."""
    max_bytes: int | None = None
    """The size of the stored messages at which a micro-batch ends, bytes."""
    continues_ledger: bool = False
    """Whether a new checkpoint may continue a ledger that was used with another one."""
    max_attempts: int | None = None
    """The number of attempts after which a batch is divided into smaller parts; None: unlimited."""
    fail_on_loss: bool = True
    """Whether the query fails if its checkpoint does not belong to the ledger."""

    @property
    def after_contact(self) -> Options:
        """The options of a session in a process of a job that has reached the servers: it waits out an outage."""
        return replace(self, connect_timeout=max(self.connect_timeout, self.outage_timeout))


def parse_servers(given: Mapping[str, str]) -> Servers:
    """Parse the options for the ZooKeeper servers.

    Raises:
        InvalidOptionError: an option is unknown, missing or out of range. The value of an unknown option is not shown.
    """
    return _servers(_checked(given, {name.lower(): name for name in _SERVERS}))


def parse_options(given: Mapping[str, str]) -> Options:
    """Parse the options of a reader or writer.

    Raises:
        InvalidOptionError: an option is unknown, missing or out of range. The value of an unknown option is not shown.
        InvalidNameError: the name is not a valid queue name.
    """
    if paths := [value for name, value in given.items() if name.lower() == "paths"]:
        raise InvalidOptionError(f"load({paths[0]}): name one queue; read each queue as a frame, and use `union`")
    if any(name.lower().startswith(_OF_TABLE) for name in given):
        raise InvalidOptionError(
            "a table cannot be a queue, because Spark does not pass its options to reads: use CREATE TEMPORARY VIEW"
        )
    options = _checked({name: value for name, value in given.items() if name.lower() not in _SPARKS}, _KNOWN)
    servers = _servers(options)
    queue = options.get("queue") or options.get("path")
    if not queue:
        raise InvalidOptionError('name the queue: .option("queue", "orders"), or .load("orders"), or .save("orders")')
    if "queue" in options and options.get("path", queue) != queue:
        raise InvalidOptionError(f"the options name two queues, {queue!r} and {options['path']!r}; leave one out")
    check_queue_name(queue)
    app, version = _transaction(options)
    return Options(
        **asdict(servers),
        queue=queue,
        content=_choice(options, "content", Content) or Content.ITEMS,
        min_partitions=_count(options, "minPartitions", _MOST_PARTITIONS) or 1,
        mode=_choice(options, "mode", Mode) or Mode.PERMISSIVE,
        corrupt=options.get("columnnameofcorruptrecord", "_corrupt_record"),
        time_zone=_zone(options),
        write_id=_text(options, "writeId"),
        txn_app=app,
        txn_version=version,
        id_column=_text(options, "idColumn"),
        push_down=_switch(options, "pushDown", default=False),
        rows=_count(options, "rowsPerTransaction", _MOST_ROWS) or 500,
        put_timeout=_seconds(options, "putTimeout", 60.0, zero=True),
        group=_group(options),
        max_offsets=_count(options, "maxOffsetsPerTrigger"),
        max_bytes=_size(options, "maxBytesPerTrigger"),
        continues_ledger=_choice(options, "startingOffsets", _Starting) is not None,
        max_attempts=_count(options, "maxBatchAttempts"),
        fail_on_loss=_switch(options, "failOnDataLoss", default=True),
    )


def unused_options(given: Mapping[str, str], direction: Direction) -> list[str]:
    """Return a sentence about each option that this use of the format ignores."""
    known = {name.lower(): (name, uses) for name, uses in _USES.items()}
    found = [known[name.lower()] for name in given if name.lower() in known]
    return [
        f"the option {name} has no effect on {direction.value}: it is for {' and '.join(use.value for use in uses)}"
        for name, uses in found
        if direction not in uses
    ]


def _transaction(options: Mapping[str, str]) -> tuple[str | None, int]:
    """Return the application and the number of a write; 0 if it has none."""
    if ("txnappid" in options) != ("txnversion" in options):
        raise InvalidOptionError("give txnAppId and txnVersion together: the name of the application, and a number")
    if "txnappid" in options and "writeid" in options:
        raise InvalidOptionError("writeId: txnAppId and txnVersion identify the write; leave writeId out")
    version = _integer(options.get("txnversion", "0"))
    if version is None:
        raise InvalidOptionError(f"txnVersion={options['txnversion']!r}: give an integer from 0 to {_LARGEST}")
    return _text(options, "txnAppId"), version


def _checked(given: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    options = {name.lower(): value for name, value in given.items()}
    for name in options:
        if name in _SECRETS:
            raise InvalidOptionError(
                f"option {name!r}: options are shown in plans and logs; put `digest:USER:PASSWORD` into a file on "
                "every node and name it with `authFile`, or set the environment variable AIOZKQUEUE_AUTH"
            )
        if name not in known:
            near = get_close_matches(name, known, n=1)
            meant = f", did you mean {known[near[0]]!r}?" if near else ";"
            raise InvalidOptionError(f"no option {name!r}{meant} the options are {', '.join(known.values())}")
    return options


def _servers(options: Mapping[str, str]) -> Servers:
    hosts = options.get("hosts")
    if not hosts:
        raise InvalidOptionError('name the ZooKeeper servers: .option("hosts", "h1:2181,h2:2181")')
    parse_hosts(hosts)
    root = options.get("root", "/zms")
    check_root(root)
    if "tlskey" in options and "tlscert" not in options:
        raise InvalidOptionError("tlsKey needs tlsCert")
    return Servers(
        hosts=hosts,
        root=root,
        session_timeout=_seconds(options, "sessionTimeout", 10.0, most=_LONGEST_SESSION),
        connect_timeout=_seconds(options, "connectTimeout", 15.0),
        outage_timeout=_seconds(options, "outageTimeout", 600.0),
        tls_ca=_file(options, "tlsCa"),
        tls_cert=_file(options, "tlsCert"),
        tls_key=_file(options, "tlsKey"),
        auth_file=_file(options, "authFile"),
    )


def _choice(options: Mapping[str, str], name: str, kind: type[E]) -> E | None:
    value = options.get(name.lower())
    if value is None:
        return None
    try:
        return kind(value.lower())
    except ValueError:
        choices = ", ".join(member.value for member in kind)
        raise InvalidOptionError(f"{name}={value!r}: give one of {choices}") from None


def _switch(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    switch = _choice(options, name, _Switch)
    return default if switch is None else switch is _Switch.ON


def _integer(text: str) -> int | None:
    """Return a number of up to 63 bits; None for any other text."""
    number = int(text) if _DIGITS.fullmatch(text) else _LARGEST + 1
    return number if number <= _LARGEST else None


def _count(options: Mapping[str, str], name: str, most: int = _LARGEST) -> int | None:
    value = options.get(name.lower())
    if value is None:
        return None
    number = _integer(value)
    if number is None or not 1 <= number <= most:
        raise InvalidOptionError(f"{name}={value!r}: give an integer from 1 to {most}")
    return number


def _size(options: Mapping[str, str], name: str) -> int | None:
    """Return a number of bytes, which may be given in KiB, MiB or GiB, as in ``64m``."""
    value = options.get(name.lower())
    if value is None:
        return None
    found = re.fullmatch(r"([0-9]{1,15})([kmg]?)b?", value.strip().lower())
    size = 0 if found is None else int(found[1]) * _UNITS[found[2]]
    if not 1 <= size <= _LARGEST:
        raise InvalidOptionError(f"{name}={value!r}: give a number of bytes, such as 1048576 or 64m")
    return size


def _seconds(
    options: Mapping[str, str], name: str, default: float, *, zero: bool = False, most: float = LONGEST_DELAY
) -> float:
    value = options.get(name.lower())
    if value is None:
        return default
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number <= most or (number == 0 and not zero):
        least = "of at least" if zero else "greater than"
        raise InvalidOptionError(f"{name}={value!r}: give a number of seconds {least} 0, at most {most:.0f}")
    return number


def _file(options: Mapping[str, str], name: str) -> str | None:
    """Return the path of a file. An empty one would be the working directory, or no certificate at all."""
    value = options.get(name.lower())
    if value is not None and not value.strip():
        raise InvalidOptionError(f"{name} is empty: name a file, or leave the option out")
    return value


def _text(options: Mapping[str, str], name: str) -> str | None:
    value = options.get(name.lower())
    if value is not None and not 1 <= len(value.encode("utf-8", "replace")) <= _LONGEST_ID:
        raise InvalidOptionError(f"{name}: give 1 to {_LONGEST_ID} bytes of text")
    return value


def zone_of(name: str) -> tzinfo:
    """Return the time zone with this name, or with this offset in Spark's notation, such as ``+02:00`` or ``GMT+2``.

    Raises: InvalidOptionError.
    """
    try:
        if found := _OFFSET.fullmatch(name):
            hours, minutes = int(found[2] or 0), int(found[3] or 0)
            offset = timedelta(hours=hours, minutes=minutes)
            return timezone(-offset if found[1] == "-" else offset)
        return ZoneInfo(name)
    except (ValueError, OSError, ZoneInfoNotFoundError) as error:
        msg = f"timeZone={name!r}: give the name of a region, such as Europe/Paris, or an offset, such as +02:00"
        raise InvalidOptionError(msg) from error


def _zone(options: Mapping[str, str]) -> str:
    name = options.get("timezone", "UTC")
    zone_of(name)
    return name


def _group(options: Mapping[str, str]) -> str:
    group = options.get("group", "spark")
    check_queue_name(group, "group")
    return group
