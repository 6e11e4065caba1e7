"""Recurring jobs: their payload, queue and times. `Scheduler` puts the messages."""

from __future__ import annotations

import logging
import math
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, overload
from weakref import WeakKeyDictionary

from aiozkqueue.arguments import is_choice, positive, required_seconds
from aiozkqueue.errors import (
    AlreadyExistsError,
    InvalidOptionError,
    InvalidScheduleError,
    NotFoundError,
    PayloadError,
    QueueError,
)
from aiozkqueue.layout import name_at
from aiozkqueue.layout.errors import MalformedError
from aiozkqueue.layout.jobs import MOST_MISSED, JobRecord, SchedulePaths
from aiozkqueue.moments import moment_at
from aiozkqueue.operations.shown_time import shown_time
from aiozkqueue.queue.commit.register import FixedOperations, server_time
from aiozkqueue.queue.commit.write import AtomicWrite
from aiozkqueue.queue.destination import Destination, binding_of, not_own
from aiozkqueue.queue.options import PutOptions
from aiozkqueue.queue.put.prepare import check_and_encode
from aiozkqueue.runtime.acl_errors import right_denied
from aiozkqueue.session.internals import core_of
from aiozkqueue.zookeeper import (
    BadVersionError,
    Check,
    Create,
    Delete,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    SetData,
    below,
    changes,
    parent_of,
    read_latest,
    reads,
)

from .cron import Cron, load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Unpack

    from pydantic import JsonValue

    from aiozkqueue.arguments import Seconds
    from aiozkqueue.layout.jobs import Missed
    from aiozkqueue.queue.commit.register import Explain
    from aiozkqueue.session.core import SessionCore
    from aiozkqueue.session.queue import Queue
    from aiozkqueue.session.session import QueueSession
    from aiozkqueue.zookeeper import CallLimit, Node, Operation, ZooKeeperError

log: Final = logging.getLogger(__name__)

T = TypeVar("T")

#: All jobs, in errors.
JOBS: Final = "recurring jobs"
#: Jobs read at a time.
_PAGE = 100
#: The errors of the jobs that each session skips, by the names of the jobs: each is logged once.
_left_alone: Final[WeakKeyDictionary[SessionCore, dict[str, str]]] = WeakKeyDictionary()

#: Minimum tolerance in seconds: with less, a scheduler that is busy for a moment would skip occurrences.
LEAST_TOLERANCE = 1.0

#: Headers of every message that a job puts: the job's name, and the due date in ISO format, UTC.
JOB = "job"
OCCURRENCE = "occurrence"


@dataclass(frozen=True, slots=True)
class Job:
    """A recurring job, as read from its znode."""

    name: str
    cron: str
    zone: str
    queue: str
    body: bytes
    options: Mapping[str, JsonValue]
    """The options of its puts, as they are stored; a ``ttl`` of ``math.inf`` is None."""
    missed: Missed
    limit: int
    tolerance: float
    """Seconds that an occurrence may be late before it counts as missed."""
    paused: bool
    last: datetime | None
    """The last occurrence that a scheduler has put, or left out because of its unique key; None: there was none yet."""
    decided: datetime
    """The time up to which every occurrence is put or skipped; at first, the time when the job was added."""
    next: datetime | None
    """The next occurrence, also if the job is paused and will not put it; None: it never occurs."""


class JobOptions(PutOptions, total=False):
    """The options of a job's occurrences and puts. Every option has a default."""

    zone: str
    """The time zone of ``cron``, by its IANA name; default: UTC."""
    missed: Missed
    """The missed occurrences to put; by default the last one."""
    limit: int
    """The maximum number of missed occurrences that ``missed="all"`` puts later; default: 100."""
    tolerance: Seconds
    """Seconds that an occurrence may be late before it counts as missed, 1 to 10**9; default: 60."""


class JobChangedError(QueueError):
    """Another client has changed the job in the meantime; for the package's own use."""


class Jobs:
    """The recurring jobs below a session's root: ``Jobs(session)``.

    Adding and changing needs no scheduler; jobs occur while a `Scheduler` runs somewhere.
    """

    def __init__(self, session: QueueSession) -> None:
        self._session = session
        self._paths = SchedulePaths(core_of(session).root)

    @property
    def _limit(self) -> CallLimit:
        """The limit of one call, which `reads` and `changes` apply."""
        return core_of(self._session).limit("jobs")

    @overload
    async def add(self, name: str, cron: str, queue: Queue[T], value: T, **options: Unpack[JobOptions]) -> Job: ...
    @overload
    async def add(self, name: str, cron: str, queue: str, value: bytes, **options: Unpack[JobOptions]) -> Job: ...
    async def add(
        self, name: str, cron: str, queue: Queue[Any] | str, value: Any, **options: Unpack[JobOptions]
    ) -> Job:
        """Add a job: put ``value`` to ``queue``, with these options, at the times of ``cron`` in ``zone``.

        ``cron`` has five fields (minute, hour, day, month, weekday), or six with seconds before them, or is a nickname
        such as ``@daily``. It occurs from now on. An occurrence that is more than ``tolerance`` seconds late, because
        no scheduler ran, is missed: ``missed="skip"`` skips it, ``"all"`` puts the newest ``limit`` missed ones, and
        ``"last"`` puts the newest one, unless another occurrence is due anyway. Each message has the headers ``job``,
        its name, and ``occurrence``, its date.

        Raises:
            AlreadyExistsError: there is a job of this name.
            InvalidScheduleError: the cron expression is invalid or never occurs, or the time zone is unknown.
            MissingExtraError: the extra ``schedule`` is not installed.
            PayloadError, MessageTooLargeError, InvalidNameError, InvalidOptionError, AccessDeniedError,
            OutcomeUnknownError, NotCommittedError, SessionClosedError, WrongLoopError.
        """
        return await self._add(name, cron, queue, value, options)

    @overload
    async def declare(self, name: str, cron: str, queue: Queue[T], value: T, **options: Unpack[JobOptions]) -> Job: ...
    @overload
    async def declare(self, name: str, cron: str, queue: str, value: bytes, **options: Unpack[JobOptions]) -> Job: ...
    async def declare(
        self, name: str, cron: str, queue: Queue[Any] | str, value: Any, **options: Unpack[JobOptions]
    ) -> Job:
        """Add a job, or update the job of this name; every process may do this when it starts.

        An identical job is unchanged. A job whose ``cron`` or ``zone`` changes follows the new times from now on. A
        paused job stays paused.

        Raises: as `add`, but for AlreadyExistsError.
        """
        return await self._declare(name, cron, queue, value, options)

    @changes
    async def change(
        self,
        name: str,
        *,
        cron: str | None = None,
        zone: str | None = None,
        missed: Missed | None = None,
        limit: int | None = None,
        tolerance: Seconds | None = None,
    ) -> Job:
        """Change the times of a job, or the handling of missed occurrences. None leaves an option unchanged.

        Args:
            name: the name of the job.
            cron: a new cron expression, which applies from now on.
            zone: a new time zone, which applies from now on.
            missed: as for `add`.
            limit: as for `add`.
            tolerance: as for `add`.

        Raises: InvalidScheduleError, InvalidOptionError, OutcomeUnknownError; NotCommittedError; as `get`.
        """
        settings: dict[str, Any] = {}
        if missed is not None:
            settings["missed"] = _missed(missed)
        if limit is not None:
            settings["limit"] = _limit(limit)
        if tolerance is not None:
            settings["tolerance"] = _tolerance(tolerance)

        def changed(old: JobRecord) -> JobRecord:
            return replace(old, cron=cron or old.cron, zone=zone or old.zone, **settings)

        await load("* * * * *" if cron is None else cron, "UTC" if zone is None else zone)
        return await self._change(name, changed)

    @changes
    async def pause(self, name: str) -> Job:
        """Pause a job until it is resumed. Raises: OutcomeUnknownError; NotCommittedError; as `get`."""
        return await self._change(name, lambda old: replace(old, paused=True))

    @changes
    async def resume(self, name: str) -> Job:
        """Resume a paused job from now on; occurrences during the pause are not put later.

        Raises: InvalidScheduleError: its time zone is not known here; OutcomeUnknownError; NotCommittedError; as `get`.
        """
        return await self._change(name, lambda old: replace(old, paused=False))

    @changes
    async def remove(self, name: str) -> None:
        """Remove a job. Messages that it has put stay.

        Raises: NotFoundError: there is no such job; AccessDeniedError, NotCommittedError, OutcomeUnknownError,
        SessionClosedError, WrongLoopError.
        """
        path = self._paths.job(name)

        def explain(error: ZooKeeperError) -> QueueError | None:
            return _not_found(name) if isinstance(error, NoNodeError) else None

        operations: list[Operation] = [Delete(path), SetData(self._paths.base, b"")]  # see `removals`
        await apply(core_of(self._session), _job(name), operations, explain)

    @reads
    async def get(self, name: str) -> Job:
        """Read a job.

        Raises:
            NotFoundError: there is no such job.
            MissingExtraError: the extra ``schedule`` is not installed.
            PayloadError, AccessDeniedError, ConnectionLostError, SessionClosedError, WrongLoopError.
        """
        record, _ = await self._read(name)
        return await _shown(core_of(self._session), name, record)

    @reads
    async def list(self) -> list[Job]:
        """Read all jobs, sorted by name.

        Jobs that this version cannot follow, or that this user may not read, are left out. The log has one warning for
        each of them.

        Raises: MissingExtraError, AccessDeniedError, ConnectionLostError, SessionClosedError, WrongLoopError.
        """
        runtime = core_of(self._session)
        with readable(JOBS, self._paths.base):
            records = await read_jobs(runtime, self._paths, None)
        shown: list[Job] = []
        for name, (record, _) in sorted(records.items()):
            try:
                shown.append(await _shown(runtime, name, record))
            except InvalidScheduleError as error:
                left_alone(runtime, name, error)
        return shown

    @changes
    async def _add(self, name: str, cron: str, queue: Queue[Any] | str, value: object, options: JobOptions) -> Job:
        """See `add`."""
        runtime = core_of(self._session)
        path = self._paths.job(name)
        record = await _record(runtime, cron, queue, value, **options)
        record = replace(record, last=await server_time(runtime, _job(name)))
        await ensure_folder(runtime, _job(name), self._paths.base)

        def explain(error: ZooKeeperError) -> QueueError | None:
            if isinstance(error, NodeExistsError):
                return AlreadyExistsError(
                    f"job {name!r} already exists; change it with `Jobs.change`, or remove it first"
                )
            return None

        await apply(runtime, _job(name), [Create(path, record.encode())], explain)
        return await _shown(runtime, name, record)

    @changes
    async def _declare(self, name: str, cron: str, queue: Queue[Any] | str, value: object, options: JobOptions) -> Job:
        """See `declare`."""
        record = await _record(core_of(self._session), cron, queue, value, **options)
        while True:
            try:
                return await self._change(
                    name,
                    lambda old: replace(record, last=old.last, ran=old.ran, paused=old.paused, unknown=old.unknown),
                )
            except NotFoundError:
                pass
            try:
                return await self._add(name, cron, queue, value, options)
            except AlreadyExistsError:  # another process was faster
                continue

    async def _read(self, name: str) -> tuple[JobRecord, int]:
        path = self._paths.job(name)
        with readable(_job(name), path):
            try:
                node = await read_latest(core_of(self._session).zookeeper, path)
            except NoNodeError:
                raise _not_found(name) from None
            return JobRecord.decode(node.data), node.stat.version

    async def _change(self, name: str, change: Callable[[JobRecord], JobRecord]) -> Job:
        runtime = core_of(self._session)
        path = self._paths.job(name)

        await runtime.zookeeper.sync(path)  # another session may have changed it before this call
        while True:
            removed = await removals(runtime, self._paths)
            old, version = await self._read(name)
            new = change(old)
            await load(new.cron, new.zone)
            if new == old:
                return await _shown(runtime, name, old)
            if (new.cron, new.zone) != (old.cron, old.zone) or old.paused:
                new = replace(new, last=max(old.last, await server_time(runtime, _job(name))))
            try:
                await replace_job(runtime, path, new, version, removed)
            except JobChangedError:
                continue
            return await _shown(runtime, name, new)


@contextmanager
def readable(subject: str, path: str) -> Iterator[None]:
    """Name the subject and its znode in the error when it cannot be read. Raises: AccessDeniedError, PayloadError."""
    try:
        yield
    except NoAuthError as error:
        raise right_denied(subject, f"read {path}", error) from error
    except MalformedError as error:
        msg = f"{path}: {error}"
        raise PayloadError(msg) from error


async def ensure_folder(runtime: SessionCore, subject: str, path: str) -> None:
    """Create a folder below the root if it does not exist. Raises: AccessDeniedError: it names the subject."""
    try:
        await runtime.zookeeper.ensure(path)
    except NoAuthError as error:
        raise right_denied(subject, f"create children of {parent_of(path)}", error) from error


async def apply(runtime: SessionCore, subject: str, operations: list[Operation], explain: Explain) -> None:
    """Apply operations exactly once. Raises: the result of ``explain`` for a refusal; as `Queue.put`."""
    await runtime.settle(AtomicWrite(runtime.ids.next(), FixedOperations(subject, operations, explain)))


async def replace_job(runtime: SessionCore, path: str, job: JobRecord, version: int, removed: Operation) -> None:
    """Replace a job of this version, which was read after ``removed`` was made, the check of `removals`.

    Raises: JobChangedError: it is not the stored one any more; as `apply`.
    """
    subject = _job(name_at(path))

    def explain(error: ZooKeeperError) -> QueueError | None:
        if isinstance(error, NoNodeError | BadVersionError):
            return JobChangedError(f"{subject}: {error}")
        return None

    await apply(runtime, subject, [removed, SetData(path, job.encode(), version)], explain)


async def removals(runtime: SessionCore, paths: SchedulePaths) -> Operation:
    """Return a check that no job is removed from now on.

    A job that is removed and added again counts its versions from 0, so a change at a version that was read before the
    removal could replace the new job. Each removal therefore changes the folder, and each change asserts its version.
    The check must be made before the job is read.
    """
    folder = await runtime.zookeeper.exists(paths.base)
    return Check(paths.base, -1 if folder is None else folder.version)


async def read_jobs(
    runtime: SessionCore, paths: SchedulePaths, names: set[str] | None
) -> dict[str, tuple[JobRecord, int]]:
    """Read jobs (None: all) with their versions; missing, unreadable and undecodable jobs are left out."""
    zookeeper = runtime.zookeeper
    if names is None:
        names = set(await below(zookeeper, paths.base))
        logged = _left_alone.get(runtime, {})
        for name in logged.keys() - names:
            del logged[name]
    found: dict[str, tuple[JobRecord, int]] = {}
    ordered = sorted(names)
    for start in range(0, len(ordered), _PAGE):
        page = ordered[start : start + _PAGE]
        try:
            nodes = await zookeeper.read_many([f"{paths.base}/{name}" for name in page])
        except NoAuthError:
            nodes = [await _readable_job(runtime, paths, name) for name in page]
        for name, node in zip(page, nodes, strict=True):
            if node is None:
                continue
            try:
                found[name] = JobRecord.decode(node.data), node.stat.version
            except MalformedError as error:
                left_alone(runtime, name, error)
    return found


async def _readable_job(runtime: SessionCore, paths: SchedulePaths, name: str) -> Node | None:
    try:
        [node] = await runtime.zookeeper.read_many([f"{paths.base}/{name}"])
    except NoAuthError as error:
        left_alone(runtime, name, error)
        return None
    return node


def left_alone(runtime: SessionCore, name: str, error: QueueError | MalformedError | NoAuthError) -> None:
    """Warn of a job that this version cannot follow, or that this user may not read; once for each error of a job."""
    logged, text = _left_alone.setdefault(runtime, {}), str(error)
    if logged.get(name) != text:
        logged[name] = text
        log.warning("job %s is skipped: %s", name, text, extra={"job": name})


def occurrence_options(name: str, record: JobRecord, occurrence: int) -> dict[str, Any]:
    """Return the put options of one occurrence's message."""
    headers = cast("Mapping[str, str]", record.options.get("headers") or {})
    due = moment_at(occurrence).isoformat()
    options: dict[str, Any] = {**record.options, "headers": {**headers, JOB: name, OCCURRENCE: due}}
    if "ttl" in options and options["ttl"] is None:
        options["ttl"] = math.inf
    return options


async def _record(
    runtime: SessionCore,
    cron: str,
    queue: Destination[Any] | str,
    value: object,
    *,
    zone: str = "UTC",
    missed: Missed = "last",
    limit: int = 100,
    tolerance: Seconds = 60,
    **options: Unpack[PutOptions],
) -> JobRecord:
    """Check everything that can be checked before anything is sent."""
    await load(cron, zone)
    for option, given in {"at": options.get("at"), "delay": options.get("delay")}.items():
        if given is not None:
            msg = f"{option}={given!r}: a job's message is due when the job occurs; remove this option"
            raise InvalidOptionError(msg)
    stored = {option: _storable(given) for option, given in options.items() if given is not None}
    if isinstance(queue, Destination) and binding_of(queue).owner is not runtime:
        raise not_own(queue.name)
    if isinstance(queue, Destination) and binding_of(queue).dialect is not None:
        msg = (
            f"queue {queue.name!r} has the layout of another program, to which no job puts; add the job with a queue "
            "of session.queue(), and put to this one in its handler"
        )
        raise InvalidOptionError(msg)
    prepared = check_and_encode(queue, value, stored, runtime.max_message)
    headers = cast("Mapping[str, str]", options.get("headers") or {})
    if JOB in headers or OCCURRENCE in headers:
        msg = f"the headers {JOB!r} and {OCCURRENCE!r} are reserved; use other names"
        raise InvalidOptionError(msg)
    if stored.get("ttl") == math.inf:  # a number that JSON does not have
        stored["ttl"] = None
    record = JobRecord(
        cron=cron,
        zone=zone,
        queue=prepared.queue,
        body=cast("bytes", value) if isinstance(queue, str) else binding_of(queue).codec.encode(value, queue.name),
        last=0,
        options=stored,
        missed=_missed(missed),
        limit=_limit(limit),
        tolerance=_tolerance(tolerance),
    )
    record.encode()
    return record


def _storable(value: object) -> JsonValue:
    if isinstance(value, timedelta):
        return value.total_seconds()
    return cast("JsonValue", dict(cast("Mapping[str, JsonValue]", value)) if hasattr(value, "keys") else value)


def check_times(cron: str, zone: str, missed: str, tolerance: Seconds) -> None:
    """Refuse a job that `Jobs.declare` would refuse for its times.

    Raises: InvalidScheduleError, InvalidOptionError; MissingExtraError: the extra ``schedule`` is not installed.
    """
    _missed(missed)
    _tolerance(tolerance)
    Cron(cron, zone)


def _missed(missed: str) -> Missed:
    if not is_choice(missed, "skip", "last", "all"):
        msg = f"missed={missed!r}: give 'skip', 'last' or 'all'"
        raise InvalidOptionError(msg)
    return cast("Missed", missed)


def _limit(limit: int) -> int:
    if positive(limit, "limit") > MOST_MISSED:
        msg = f"limit={limit!r}: give 1 to {MOST_MISSED}"
        raise InvalidOptionError(msg)
    return limit


def _tolerance(tolerance: Seconds) -> float:
    number = required_seconds(tolerance, "tolerance")
    if number < LEAST_TOLERANCE:
        msg = f"tolerance={tolerance!r}: give at least {LEAST_TOLERANCE:g} second: every occurrence is a little late"
        raise InvalidOptionError(msg)
    return number


def _job(name: str) -> str:
    return f"job {name!r}"


def _not_found(name: str) -> NotFoundError:
    return NotFoundError(f"there is no job {name!r}")


async def _shown(runtime: SessionCore, name: str, record: JobRecord) -> Job:
    last = max(record.last, await shown_time(runtime)) if record.paused else record.last
    following = next((await load(record.cron, record.zone)).after(last), None)
    return Job(
        name=name,
        cron=record.cron,
        zone=record.zone,
        queue=record.queue,
        body=record.body,
        options=record.options,
        missed=record.missed,
        limit=record.limit,
        tolerance=record.tolerance,
        paused=record.paused,
        last=None if record.ran is None else moment_at(record.ran),
        decided=moment_at(record.last),
        next=None if following is None else moment_at(following),
    )
