"""Moves histories to Parquet files, each record exactly once, even if the work is interrupted.

A run has these steps, and `.audit` (see `state`) stores its phase:

1. ``begin``: the state is *writing*. Every history is pinned, so that clean-up removes nothing.
2. ``write``: a Spark job writes the histories into ``_audit/<run>`` of the folder, which readers ignore.
3. ``commit``: the state is *written*. From here on, the next audit finishes the run.
4. ``publish``: the files are moved to the folder itself. Their names begin with the name of the run.
5. ``remove``: the records in these files are removed from the histories, and then the pins.
6. ``end``: the state is *done*.

If a run is interrupted before step 3, its files are deleted and the records are still in the histories. If it is
interrupted later, steps 4 to 6 are repeated, which is safe. A run writes the state only at the version that it last
read or wrote. So if another run replaces it, it fails at step 3 at the latest, before it has published anything.

If the pins are removed, an interrupted run is abandoned, and a run into another folder may begin. The records in the
first folder stay there, and the other run may move them a second time.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from pyspark.sql import functions

from aiozkqueue.arguments import collection
from aiozkqueue.errors import (
    AccessDeniedError,
    ClaimLostError,
    ConfigConflictError,
    ConnectionLostError,
    NotFoundError,
)
from aiozkqueue.operations.history_pins import pin, pins, unpin
from aiozkqueue.operations.similar import absence
from aiozkqueue.session.internals import core_of
from aiozkqueue.spark.connection import opened
from aiozkqueue.spark.failures import unwrapped_errors
from aiozkqueue.spark.folder import Folder, named
from aiozkqueue.spark.options import parse_servers
from aiozkqueue.zookeeper import (
    BadVersionError,
    ConnectionLossError,
    Create,
    MultiError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
    SetData,
    apply_until_answered,
)

from .records import SCHEMA, Reading, Removing, tasks_of
from .state import Phase, Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from anyio.from_thread import BlockingPortal
    from pyspark.sql import SparkSession

    from aiozkqueue.session.session import QueueSession
    from aiozkqueue.spark.options import Servers

#: The path of the audit's own data in a folder.
OWN: Final = "_audit"
_MARK: Final = f"{OWN}/mark"
_PIN: Final = "audit"
_EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The result of an audit."""

    records: int
    """The number of records that this run has moved into the folder."""
    finished: bool
    """Whether an earlier, interrupted run was finished first."""


def move(
    spark: SparkSession,
    folder: str,
    options: Mapping[str, str],
    *,
    queues: Sequence[str] | None = None,
    on_step: Callable[[str], object] = lambda _step: None,
) -> Moved:
    """Move the histories to Parquet files, partitioned by queue and day (UTC), each record exactly once.

    An interrupted audit can be repeated: no record is lost or duplicated. Until then, the histories are pinned, so
    clean-up removes no records from them. Records that are added while the audit runs are left for the next audit.

    Args:
        spark: a Spark session, with any cluster. With Spark Connect, this process must also reach the folder.
        folder: the target on any file system of Spark; a new folder, or the folder of earlier audits.
        options: ``hosts`` and the other options for the ZooKeeper servers, as for the format ``aiozkqueue``.
        queues: the queues to audit; None: all.
        on_step: called with the name of each step as it begins.

    Raises:
        InvalidOptionError: an option is invalid, ``queues`` is not a collection, or another run uses the folder.
        ConfigConflictError: an audit into another folder was interrupted and must be finished first.
        ClaimLostError: another audit has begun in the meantime; this one has published nothing.
        ConnectionLostError, AccessDeniedError.
    """
    if queues is not None:
        collection(queues, "queues", "names of queues")
    servers = parse_servers(options)
    target = Folder(spark, folder)
    target.require(OWN)
    with opened(servers) as (portal, session):
        audit = _Audit(spark, target, servers, portal=portal, session=session, on_step=on_step)
        finished = audit.resume()
        return Moved(records=audit.run(queues), finished=finished)


class _Audit:
    def __init__(
        self,
        spark: SparkSession,
        folder: Folder,
        servers: Servers,
        *,
        portal: BlockingPortal,
        session: QueueSession,
        on_step: Callable[[str], object],
    ) -> None:
        self._spark = spark
        self._folder = folder
        self._servers = servers
        self._portal = portal
        self._session = session
        self._on_step = on_step
        self._state = _State(session)
        self._mark = folder.noted(_MARK)

    def resume(self) -> bool:
        """Finish an earlier run that was committed; return whether there was one."""
        with _translate_errors(self._servers):
            run = self._portal.call(self._state.read)
            if run is None or run.phase is not Phase.WRITTEN:
                return False
            if run.folder != self._mark:
                if self._portal.call(_is_abandoned, self._session):
                    return False
                msg = (
                    f"an audit of {self._servers.root} was interrupted after its files were complete. Finish it "
                    f"first, in the same folder: aiozkqueue audit --to {run.where}. If that folder is lost, abandon "
                    f"the run: aiozkqueue pins remove {_PIN}"
                )
                raise ConfigConflictError(msg)
            self._finish(run)
            return True

    def run(self, queues: Sequence[str] | None) -> int:
        """Move the current records."""
        with _translate_errors(self._servers):
            names = self._portal.call(_wanted, self._session, queues)
            self._on_step("begin")
            if self._mark is None:
                self._mark = uuid4().hex
                self._folder.note(_MARK, self._mark)
            run = Run(name=uuid4().hex, folder=self._mark, where=self._folder.path, phase=Phase.WRITING)
            self._portal.call(self._state.write, run)
            for name in names:
                self._portal.call(_pin, self._session, name)
            tasks = self._portal.call(tasks_of, self._session, names)
            if tasks:
                self._on_step("write")
                self._write(run, tasks)
            self._on_step("commit")
            run = replace(run, phase=Phase.WRITTEN)
            self._portal.call(self._state.write, run)
            return self._finish(run)

    def _write(self, run: Run, tasks: Sequence[str]) -> None:
        for name in self._folder.names(OWN):
            if f"{OWN}/{name}" != _MARK:
                self._folder.remove(f"{OWN}/{name}")  # files of runs that were interrupted before their commit
        numbers = self._spark.range(0, len(tasks), 1, len(tasks))
        frame = numbers.mapInArrow(Reading(self._servers, list(tasks)), SCHEMA)
        place = f"{OWN}/{run.name}"
        frame.write.partitionBy("queue", "day").parquet(self._folder.at(place))
        self._folder.keep(place)

    def _finish(self, run: Run) -> int:
        self._on_step("publish")
        place = f"{OWN}/{run.name}"
        self._folder.publish(place, run.name)
        files = named(self._folder.data(), run.name)
        records = 0
        if files:
            self._on_step("remove")
            records = self._remove(files)
        self._portal.call(_unpin, self._session)
        self._folder.remove(place)
        self._on_step("end")
        with suppress(ClaimLostError):  # another process has taken over and finished this run first
            self._portal.call(self._state.write, replace(run, phase=Phase.DONE))
        return records

    def _remove(self, files: Sequence[str]) -> int:
        reader = self._spark.read.schema(SCHEMA).option("basePath", self._folder.path)
        rows = reader.parquet(*(self._folder.at(file) for file in files))
        names = rows.select("queue", functions.unix_millis("ended_at").alias("ended"), "id")
        counted = names.mapInArrow(Removing(self._servers), "records long")
        return int(counted.agg(functions.sum("records")).collect()[0][0] or 0)


class _State:
    """The znode with the progress of the audit."""

    def __init__(self, session: QueueSession) -> None:
        self._session = session
        self._version: int | None = None

    @property
    def _path(self) -> str:
        return f"{core_of(self._session).root}/.audit"

    async def read(self) -> Run | None:
        """Read the state; None if there has been no audit."""
        zookeeper, path = core_of(self._session).zookeeper, self._path
        try:
            await zookeeper.sync(path)
            node = await zookeeper.read(path)
        except NoNodeError:
            self._version = None
            return None
        self._version = node.stat.version
        return Run.decode(node.data)

    async def write(self, run: Run) -> None:
        """Replace the state last read or written. Raises: ClaimLostError: another audit has written in the meantime."""
        core, path = core_of(self._session), self._path
        data, version = run.encode(), self._version
        change = Create(path, data) if version is None else SetData(path, data, version)

        async def applied(_: MultiError) -> bool:
            return await self.read() == run

        await core.zookeeper.ensure(core.root)
        try:
            await apply_until_answered(core.zookeeper, [change], applied=applied)
        except MultiError as refusal:
            if not isinstance(refusal.error, BadVersionError | NodeExistsError | NoNodeError):
                raise refusal.error from refusal
            msg = f"another audit of {core.root} has begun in the meantime: this audit cannot continue"
            raise ClaimLostError(msg) from refusal
        self._version = 0 if version is None else version + 1


async def _wanted(session: QueueSession, queues: Sequence[str] | None) -> list[str]:
    existing = await session.queues()
    missing = sorted(set(queues or ()) - set(existing))
    if missing:
        raise NotFoundError(await absence(core_of(session), missing[0]))
    return existing if queues is None else sorted(set(queues))


async def _pin(session: QueueSession, queue: str) -> None:
    handle = core_of(session).handle(queue)
    if await handle.zookeeper.exists(handle.paths.history) is not None:
        await pin(handle, _PIN, _EARLIEST)


async def _unpin(session: QueueSession) -> None:
    for queue in await session.queues():
        await unpin(core_of(session).handle(queue), _PIN)


async def _is_abandoned(session: QueueSession) -> bool:
    """Whether an interrupted run has no pins, because an operator or the run itself has removed them."""
    found = [entry for queue in await session.queues() for entry in await pins(core_of(session).handle(queue))]
    return _PIN not in {entry.name for entry in found}


@contextmanager
def _translate_errors(servers: Servers) -> Iterator[None]:
    """Raise errors of ZooKeeper and Spark as errors of this library."""
    try:
        with unwrapped_errors():
            yield
    except NoAuthError as error:
        msg = f"root {servers.root}: {error}; set AIOZKQUEUE_AUTH to the credentials of a user that the ACL allows"
        raise AccessDeniedError(msg) from error
    except (ConnectionLossError, SessionExpiredError) as error:
        msg = f"the connection was lost during the audit: {error}; run it again"
        raise ConnectionLostError(msg) from error
