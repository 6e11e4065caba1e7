"""The facts of a diagnosis: the readings of the servers and of the queues."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from aiozkqueue.operations.batch_writers import WriterInfo


@dataclass(frozen=True, slots=True)
class Latency:
    """Round trips, seconds."""

    p50: float
    most: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Latency:
        """Return the median and the maximum of the samples; there must be at least one."""
        return cls(statistics.median(samples), max(samples))


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """One server, by its own report; None: it does not report this."""

    address: str
    reachable: bool
    version: str | None = None
    mode: str | None = None
    files: int | None = None
    """The size of its snapshots and transaction logs, bytes."""
    serving: bool = True
    """Whether it has contact with a quorum, as far as it reports this."""
    answers: bool = True
    """Whether it does not close connections before it answers a four-letter command, if only that it is not allowed."""
    frozen: bool = False
    """Whether it accepted a connection, and then sent nothing in time."""
    request_limit: int | None = None
    """The largest request that it accepts, bytes, if this is less than this client expects."""
    tls_error: str | None = None
    """Why a TLS connection to it fails; None if it does not fail."""
    tls_advice: str | None = None
    """The remedy of that error, if it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleFacts:
    """The servers, and the session that reads from them."""

    servers: Sequence[ServerFacts]
    session_timeout: float
    """As negotiated, seconds."""
    request_limit: int
    """The largest request that this client sends, bytes."""
    read: Latency
    write: Latency | None
    """None if this user may not write below the root, or a quota is used up."""
    clock_offset: float | None
    """The leader's clock minus the clock of this machine, seconds."""
    authenticated: bool
    old_slots: int
    """The number of clients whose commit slots have not been used for a day."""
    open_to_all: Sequence[str] = ()
    """Znodes outside of queues that everyone may change."""
    readable_by_all: Sequence[str] = ()
    complete: bool = True
    """Whether the time budget was enough to check all commit slots."""
    over_quota: bool = False
    """Whether an enforced quota of ZooKeeper refused the write."""


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """One folder of a queue."""

    path: str
    children: int
    listing: int
    """The size of its listing, bytes."""
    counter: int
    """The number of children ever created in it, as the server counts them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """The facts about one queue, as far as they could be read."""

    name: str
    exists: bool = True
    similar: str | None = None
    """The existing queue with the most similar name, if this one does not exist."""
    trouble: str | None = None
    """Why it could not be read."""
    remedy: str = ""
    """The advice for that trouble."""
    complete: bool = True
    """Whether everything was checked; False: the time budget ran out, and the facts are those found until then."""
    lanes_left: int = 0
    """The number of lanes, and of hours of scheduled messages, that were not listed."""
    lanes: Sequence[FolderFacts] = ()
    folders: Sequence[FolderFacts] = ()
    put_lanes: Sequence[str] = ()
    """The paths of the lanes that producers put messages into."""
    generations: int = 1
    """The largest number of lanes of one shard."""
    size: int = 0
    delayed: int = 0
    """The messages that can only be taken later: retrying and scheduled ones."""
    max_size: int | None = None
    """The maximum number of messages; None: no limit."""
    paused: bool = False
    consumers: int = 0
    dead_letters: int = 0
    foreign: Sequence[str] = ()
    """Children of lanes whose names are not item names."""
    endless_locks: Sequence[str] = ()
    """Locks that neither the end of a session nor a due time removes."""
    unannounced_locks: Sequence[str] = ()
    """Timed locks without the due node that ends them."""
    orphan_dues: Sequence[str] = ()
    """Due nodes without a lock."""
    orphan_locks: Sequence[str] = ()
    """Locks whose item is gone."""
    overdue: int = 0
    """The number of timed locks that should have ended some time ago."""
    orphan_metas: Sequence[str] = ()
    """Records of attempts whose item is gone."""
    obstructed: Sequence[str] = ()
    """Items and records of attempts, among those checked, that have znodes below them."""
    unreadable: Sequence[str] = ()
    """Items and records of attempts, among those checked, that this user may not read."""
    over_quota: bool = False
    """Whether an enforced quota of ZooKeeper on this queue alone refuses new znodes."""
    bad_tags: Sequence[str] = ()
    """Records of tags, among those checked, that this user may not read or that do not match their names."""
    unfinished: Sequence[WriterInfo] = ()
    """Batches of Spark's writers that are not complete."""
    now: datetime | None = None
    """By the leader's clock."""
    old_pins: Sequence[str] = ()
    """The pins that have protected the history from clean-up for a day."""
    open_to_all: Sequence[str] = ()
    readable_by_all: Sequence[str] = ()
    unread: Sequence[str] = ()
    """Why parts of the queue could not be read: this user may not. The other facts leave them out."""
