"""The facts for a diagnosis, read from the servers.

It writes one short-lived ephemeral znode, and, in a queue with a quota, one that the request that creates it removes.
Reading locks nothing, and a busy queue changes at the same time: a suspected problem is read a second time.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import AccessDeniedError, PayloadError
from aiozkqueue.layout import (
    ClientPaths,
    QueuePaths,
    is_deleted,
)
from aiozkqueue.operations.budget import BUDGET, Budget
from aiozkqueue.operations.orphans import old_clients
from aiozkqueue.operations.queue_names import queue_names
from aiozkqueue.operations.similar import similar_queue
from aiozkqueue.queue.state.stored_queue import configuration_of
from aiozkqueue.zookeeper import (
    Create,
    Delete,
    MultiError,
    NoAuthError,
    NoNodeError,
    QuotaExceededError,
    ServerError,
    SetData,
    Silence,
    Stat,
    TlsFailure,
    below,
)
from aiozkqueue.zookeeper.handshake import ask

from .acls import ACL_SAMPLE, open_znodes
from .diagnosis import Diagnosis, diagnose
from .facts import EnsembleFacts, Latency, QueueFacts, ServerFacts
from .queue_probe import QueueProbe

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Sequence

    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.zookeeper import Answer
    from aiozkqueue.zookeeper.hosts import Server

#: The largest number of round trips to measure, of reads and of writes.
ROUND_TRIPS: Final = 20
#: The advice for queues that could not be read.
OTHER_USER: Final = "run doctor with the credentials of a user whom the ACL allows (AIOZKQUEUE_AUTH)"
OTHER_VERSION: Final = "until then, programs of this version can neither put into the queue nor take from it"
LOGS: Final = "the logs of the servers may show why"
_VERSION: Final = re.compile(r"^Zookeeper version: ([^\s,]+)", re.MULTILINE)
_MODE: Final = re.compile(r"^Mode: (\S+)", re.MULTILINE)
#: In the answer of a server that runs, but has no contact with a quorum.
_NOT_SERVING: Final = "not currently serving requests"
#: The folders of snapshots and of logs, which may be the same, each with its size.
_FILES: Final = re.compile(r"^data(?:Log)?Dir=(.*)\r?\ndata(?:Dir|Log)Size=([0-9]{1,18})$", re.MULTILINE)


async def examine(runtime: Runtime, names: Sequence[str], seconds: float = BUDGET) -> Diagnosis:
    """Read and evaluate the facts of the servers and of these queues (default: all) within about this time."""
    return await _Examination(runtime, Budget(seconds)).run(names)


async def examine_servers(servers: Sequence[Server], tls: ssl.SSLContext | None) -> list[ServerFacts]:
    """Ask each server on its own connections, without a session: for servers that accept none."""
    asked = [(server, word) for word in ("srvr", "conf") for server in servers]
    answers = await asyncio.gather(*(ask(server, word, tls) for server, word in asked))
    settings = answers[len(servers) :]
    return [
        _server(str(server), answer, conf)
        for server, answer, conf in zip(servers, answers[: len(servers)], settings, strict=True)
    ]


class _Clients:
    """The number of old folders of clients, and the znodes that are open to everyone."""

    def __init__(self) -> None:
        self.old = 0
        self.open_to_all: list[str] = []
        self.readable: list[str] = []
        self.complete = True


class _Examination:
    """One reading of the servers and the queues."""

    def __init__(self, runtime: Runtime, budget: Budget) -> None:
        self._runtime = runtime
        self._budget = budget
        self._zookeeper = runtime.zookeeper
        self._root = runtime.root
        self._now = runtime.clock.time()  # by the leader's clock as soon as a write has returned its time

    async def run(self, names: Sequence[str]) -> Diagnosis:
        zookeeper = self._zookeeper
        await zookeeper.sync("/")
        read = Latency.of([await self._time_read() for _ in self._rounds()])
        write: Latency | None = None
        offset: float | None = None
        over_quota = False
        try:
            write, offset = await self._time_writes()
        except NoAuthError as refusal:
            over_quota = isinstance(refusal, QuotaExceededError)
        self._now = self._runtime.clock.time() + (offset or 0.0)
        clients = await self._clients()
        ensemble = EnsembleFacts(
            servers=await self._servers(),
            session_timeout=zookeeper.session_timeout,
            request_limit=zookeeper.max_request,
            read=read,
            write=write,
            clock_offset=offset,
            authenticated=zookeeper.authenticated,
            old_slots=clients.old,
            open_to_all=clients.open_to_all,
            readable_by_all=clients.readable,
            complete=clients.complete,
            over_quota=over_quota,
        )
        selected = list(names) or await queue_names(self._runtime)
        queues: list[QueueFacts] = []
        unexamined: list[str] = []
        for number, name in enumerate(selected):
            if not self._budget.left:
                unexamined = selected[number:]
                break
            facts = await self._queue(name, self._budget.share(len(selected) - number))
            if facts.exists or names:  # otherwise it was deleted after the queues were listed
                queues.append(facts)
        return diagnose(ensemble, queues, unexamined)

    # -- the servers and their clients

    async def _clients(self) -> _Clients:
        """Check the commit slots of all clients in up to a quarter of the time."""
        found = _Clients()
        found.complete = await self._budget.share(4).allows(self._examine_clients(found))
        return found

    async def _examine_clients(self, found: _Clients) -> None:
        zookeeper, clients = self._zookeeper, ClientPaths(self._root, "-").clients
        folders = [f"{clients}/{name}" for name in (await below(zookeeper, clients))[:ACL_SAMPLE]]
        slots = [f"{folder}/{slot}" for folder in folders for slot in await self._slots(folder)]
        found.open_to_all, found.readable = await open_znodes(zookeeper, [self._root, clients, *folders, *slots])
        found.old = len(await old_clients(zookeeper, self._root, self._now))

    async def _slots(self, folder: str) -> list[str]:
        """List the commit slots of a client; none if they belong to another user."""
        try:
            return await below(self._zookeeper, folder)
        except NoAuthError:
            return []

    async def _servers(self) -> list[ServerFacts]:
        answers = await self._zookeeper.ask_servers("srvr")
        settings = await self._zookeeper.ask_servers("conf")
        limits = await self._zookeeper.smaller_limits()
        return [_server(address, answer, settings[address], limits.get(address)) for address, answer in answers.items()]

    def _rounds(self) -> Iterator[int]:
        """Yield for each round trip to measure: at least one, and up to `ROUND_TRIPS` in a quarter of the time."""
        share = self._budget.share(4)
        for number in range(ROUND_TRIPS):
            if number and not share.left:
                return
            yield number

    async def _time_read(self) -> float:
        start = self._runtime.clock.monotonic()
        await self._zookeeper.exists("/")
        return self._runtime.clock.monotonic() - start

    async def _time_writes(self) -> tuple[Latency, float | None]:
        """Write to an own ephemeral znode. Return the latency, and the leader's clock minus the local clock.

        Raises: NoAuthError: this user may not write below the root, or a quota is used up.
        """
        clock, zookeeper = self._runtime.clock, self._zookeeper
        clients = ClientPaths(self._root, "-").clients
        path = f"{clients}/doctor-{self._runtime.ids.next()}"
        try:
            await zookeeper.ensure(clients)
            await zookeeper.multi([Create(path, ephemeral=True)])
        except MultiError as error:
            if isinstance(error.error, NoAuthError):
                raise error.error from error
            raise
        trips: list[float] = []
        offsets: list[float] = []
        try:
            for _ in self._rounds():
                start, local = clock.monotonic(), clock.time()
                results = await zookeeper.multi([SetData(path, b"")])
                trips.append(clock.monotonic() - start)
                if isinstance(results[0], Stat):
                    offsets.append(results[0].mtime / 1000 - (local + trips[-1] / 2))
        finally:
            await zookeeper.multi([Delete(path)])
        quickest = trips.index(min(trips))  # the most accurate sample
        return Latency.of(trips), offsets[quickest]

    # -- the queues

    async def _queue(self, name: str, budget: Budget) -> QueueFacts:
        paths = QueuePaths(self._root, name)
        try:
            data, _ = await self._zookeeper.read(paths.base)
            if is_deleted(data):
                return await self._absent(name)
            probe = QueueProbe(self._runtime, paths, configuration_of(paths, data), self._now)
            return probe.facts(complete=await budget.allows(probe.run()))
        except NoNodeError:
            return await self._absent(name)
        except (NoAuthError, AccessDeniedError) as error:
            return QueueFacts(name=name, trouble=f"this user may not read it: {error}", remedy=OTHER_USER)
        except PayloadError as error:
            return QueueFacts(name=name, trouble=str(error), remedy=OTHER_VERSION)
        except ServerError as error:
            return QueueFacts(name=name, trouble=f"a server refuses to read it: {error}", remedy=LOGS)

    async def _absent(self, name: str) -> QueueFacts:
        return QueueFacts(name=name, exists=False, similar=await similar_queue(self._runtime, name))


def _server(address: str, answer: Answer, settings: Answer, limit: int | None = None) -> ServerFacts:
    tls = answer if isinstance(answer, TlsFailure) else None
    return ServerFacts(
        address,
        answer is not Silence.UNREACHABLE,
        _first(_VERSION, answer),
        _first(_MODE, answer),
        _size_of_files(settings),
        serving=_is_serving(answer),
        answers=answer is not Silence.CLOSED,
        frozen=answer is Silence.FROZEN,
        request_limit=limit,
        tls_error=None if tls is None else tls.why,
        tls_advice=None if tls is None else tls.advice,
    )


def _size_of_files(settings: Answer) -> int | None:
    """Return the size of snapshots and logs by a server's answer to ``conf``; None: it does not answer."""
    text = settings if isinstance(settings, str) else ""
    sizes = {folder: int(size) for folder, size in _FILES.findall(text)}
    return sum(sizes.values()) if sizes else None


def _is_serving(answer: Answer) -> bool:
    """Whether an answer to ``srvr`` does not say that the server lacks a quorum."""
    return not isinstance(answer, str) or (_NOT_SERVING not in answer and _first(_MODE, answer) != "read-only")


def _first(pattern: re.Pattern[str], answer: Answer) -> str | None:
    match = pattern.search(answer) if isinstance(answer, str) else None
    return None if match is None else match[1]
