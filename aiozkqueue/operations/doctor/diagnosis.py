"""Problems of the servers and queues, derived from `facts` that were read before. Pure.

`probe` reads the facts; `diagnose` evaluates them. A finding has a subject, a description and advice.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from aiozkqueue.layout import LANE_END, MOST_GENERATIONS
from aiozkqueue.operations.similar import remedy
from aiozkqueue.wording import counted
from aiozkqueue.zookeeper import QuotaExceededError
from aiozkqueue.zookeeper.handshake import COMMAND_TIMEOUT
from aiozkqueue.zookeeper.wire import MAX_REQUEST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from aiozkqueue.operations.moves import MoveStatus

    from .facts import EnsembleFacts, FolderFacts, QueueFacts, ServerFacts

#: The share of the request limit above which a listing causes a warning. Java clients cannot read one above the limit.
LONG_LISTING: Final = 0.8
#: The share of `LANE_END` at which a lane's counter is reported; at `LANE_END` the next lane is opened.
LATE_COUNTER: Final = 0.9
#: The difference between two clocks above which there is a warning, seconds.
CLOCK_OFFSET: Final = 1.0
#: The median round trip above which the servers are slow, seconds.
SLOW: Final = 0.1
#: The size of a server's snapshots and transaction logs from which autopurge is probably off, bytes.
LARGE_FILES: Final = 10 * 1024**3
#: The duration after which a write to a queue may have been killed.
LONG_WRITE: Final = timedelta(minutes=10)
_SHOWN: Final = 3


class Severity(enum.Enum):
    """The severity of a finding."""

    INFO = "info"  # for information only
    WARNING = "warning"  # works now, but may fail later
    ERROR = "error"  # something does not work, or its ACL is too open


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, or a piece of information, with advice."""

    severity: Severity
    subject: str
    """A server, a queue or a path."""
    text: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The readings of `SessionAdmin.diagnose`, and its findings."""

    ensemble: EnsembleFacts
    queues: Sequence[QueueFacts]
    findings: Sequence[Finding] = field(default=())
    unexamined: Sequence[str] = ()
    """Queues that were not checked because the time budget ran out."""

    @property
    def healthy(self) -> bool:
        """Whether no finding is an error or a warning."""
        return all(finding.severity is Severity.INFO for finding in self.findings)

    def count(self, severity: Severity) -> int:
        """Return the number of findings of one severity."""
        return sum(finding.severity is severity for finding in self.findings)

    @property
    def complete(self) -> bool:
        """Whether the time budget was enough to check everything."""
        return not self.unexamined and self.ensemble.complete and all(queue.complete for queue in self.queues)


def diagnose(ensemble: EnsembleFacts, queues: Sequence[QueueFacts], unexamined: Sequence[str] = ()) -> Diagnosis:
    """Evaluate the facts; the most severe findings come first.

    ``unexamined`` are the queues that were not checked because the time budget ran out.
    """
    findings = [*of_servers(ensemble.servers), *_of_ensemble(ensemble), *_of_budget(ensemble, unexamined)]
    for queue in queues:
        findings += _of_queue(queue, ensemble)
    return Diagnosis(ensemble, queues, by_severity(findings), unexamined)


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings, the most severe first."""
    order = [Severity.ERROR, Severity.WARNING, Severity.INFO]
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def of_servers(servers: Sequence[ServerFacts]) -> Iterator[Finding]:
    """Evaluate the facts of the servers alone."""
    for server in servers:
        yield from _of_answer(server)
        if server.mode == "standalone":
            yield Finding(
                Severity.WARNING,
                server.address,
                "is a standalone server: without it, no queue can be used, and if its disk fails, all data is lost",
                "run an ensemble of three servers for anything but development and tests",
            )
        if server.request_limit is not None:
            yield Finding(
                Severity.ERROR,
                server.address,
                f"accepts requests of up to {server.request_limit} bytes, and closes the connection at a larger one; "
                f"this client expects {MAX_REQUEST} bytes",
                f"set jute.maxbuffer={MAX_REQUEST} on every server: larger messages and transactions are refused",
            )
        if server.files is not None and server.files > LARGE_FILES:
            yield Finding(
                Severity.WARNING,
                server.address,
                f"its snapshots and logs take {server.files / 1024**3:.0f} GiB, so autopurge is probably off",
                "set autopurge.purgeInterval=1 in zoo.cfg: by default, ZooKeeper never deletes old files",
            )
    versions = {server.version for server in servers if server.version is not None}
    if len(versions) > 1:
        yield Finding(
            Severity.WARNING, "servers", f"have different versions: {', '.join(sorted(versions))}", "finish the upgrade"
        )


def of_moves(moves: Iterable[MoveStatus]) -> Iterator[Finding]:
    """Report the moves that no session works on."""
    for move in moves:
        if move.unattended:
            yield Finding(
                Severity.WARNING,
                f"move {move.reference}",
                f"from {move.source} to {move.target} has not ended, and no session works on it",
                "run `aiozkqueue moves --resume`; a running `aiozkqueue serve` continues it too",
            )


def _of_answer(server: ServerFacts) -> Iterator[Finding]:
    if not server.reachable:
        yield Finding(
            Severity.WARNING,
            server.address,
            "cannot be reached",
            "start it again: the queues need a quorum of the servers; if it ends again, see its log: its disk may be "
            "full",
        )
    elif server.tls_error is not None:
        yield Finding(
            Severity.WARNING,
            server.address,
            f"a TLS connection to it fails: {server.tls_error}",
            server.tls_advice or "compare the TLS settings of the server and of this client",
        )
    elif not server.serving:
        yield Finding(
            Severity.WARNING,
            server.address,
            "runs, but serves no client: it is starting, or has no contact with a quorum of the servers",
            "check its log, and the network to the quorum and election ports of the other servers",
        )
    elif server.frozen:
        yield Finding(
            Severity.WARNING,
            server.address,
            f"accepts connections, but does not answer within {COMMAND_TIMEOUT:g} s",
            "its process is frozen or overloaded (a stopped process or machine, a full heap, a slow disk): see its "
            "log, and restart it if it does not recover; its clients move to another server",
        )
    elif not server.answers:
        yield Finding(
            Severity.WARNING,
            server.address,
            "accepts connections, and closes them without an answer to `srvr`",
            "raise its maxClientCnxns if this machine has that many connections to it (its log has `Too many "
            "connections from`); otherwise see its log: it may be starting, have no quorum, or use TLS on this "
            "port while this client does not, or the reverse",
        )
    elif server.version is None:
        yield Finding(
            Severity.INFO,
            server.address,
            "does not report its version",
            "add srvr to the server's 4lw.commands.whitelist to see the version here",
        )


def _of_ensemble(facts: EnsembleFacts) -> Iterator[Finding]:
    if facts.over_quota:
        yield _of_quota("root")
    elif facts.write is None:
        yield Finding(
            Severity.ERROR,
            "root",
            "this user may not write below it",
            "use the credentials of a user whom its ACL allows to write",
        )
    elif facts.write.p50 > SLOW:
        yield Finding(
            Severity.WARNING,
            "servers",
            f"a write takes {facts.write.p50 * 1000:.0f} ms",
            "give ZooKeeper's transaction log its own disk, and check the network between the servers",
        )
    if facts.clock_offset is not None and abs(facts.clock_offset) > CLOCK_OFFSET:
        ahead = "ahead of" if facts.clock_offset > 0 else "behind"
        yield Finding(
            Severity.WARNING,
            "clock",
            f"the leader's clock is {abs(facts.clock_offset):.1f} s {ahead} this machine's",
            "synchronize both with NTP: message times and delays use the leader's clock",
        )
    if facts.old_slots:
        yield Finding(
            Severity.WARNING,
            ".clients",
            f"the commit slots of {counted(facts.old_slots, 'client')} have not been used for a day",
            "they are left by programs that have ended: `aiozkqueue clean` removes them, as running sessions do",
        )
    if not facts.authenticated:
        yield Finding(
            Severity.INFO,
            "credentials",
            "none: everyone who can connect to the servers may read, change and delete everything",
            "set AIOZKQUEUE_AUTH=digest:USER:PASSWORD",
        )
    yield from _of_acls("root", facts.open_to_all, facts.readable_by_all, facts)


def _of_quota(subject: str) -> Finding:
    return Finding(
        Severity.ERROR,
        subject,
        "an enforced quota of ZooKeeper refuses new znodes below it: no message can be put or taken",
        QuotaExceededError.advice,
    )


def _of_budget(ensemble: EnsembleFacts, unexamined: Sequence[str]) -> Iterator[Finding]:
    if unexamined:
        yield Finding(
            Severity.WARNING,
            "queues",
            f"{len(unexamined)} {_was(len(unexamined))} not checked within the time budget: {_some(unexamined)}",
            "name some of them, or allow more time with `--budget`",
        )
    if not ensemble.complete:
        yield Finding(
            Severity.WARNING,
            ".clients",
            "not all commit slots were checked within the time budget",
            "allow more time with `--budget`; `aiozkqueue clean` removes old ones",
        )


def _of_queue(facts: QueueFacts, ensemble: EnsembleFacts) -> Iterator[Finding]:
    name = facts.name
    if not facts.exists:
        yield Finding(Severity.ERROR, name, "there is no such queue", remedy(facts.similar))
        return
    if facts.trouble is not None:
        yield Finding(Severity.ERROR, name, facts.trouble, facts.remedy)
        return
    yield from _of_reading(facts)
    for folder in (*facts.lanes, *facts.folders):
        yield from _of_listing(name, folder, ensemble.request_limit, lane=folder in facts.lanes)
    for lane in facts.lanes:
        if lane.path in facts.put_lanes:
            yield from _of_counter(name, lane)
    if facts.generations > LONG_LISTING * MOST_GENERATIONS:
        yield Finding(
            Severity.WARNING,
            name,
            f"{facts.generations} generations of a lane are in use; the maximum is {MOST_GENERATIONS}",
            "take the oldest messages: puts are refused when no more generations can be opened",
        )
    yield from _of_unfinished(facts)
    yield from _of_waiting(facts)
    if facts.max_size is not None and facts.size >= facts.max_size:
        most = counted(facts.max_size, "message")
        yield Finding(
            Severity.INFO,
            name,
            f"is full, with {facts.size} of at most {most}: puts wait for capacity, or fail",
            f"add workers, or raise the limit with `aiozkqueue configure {name} --max-size N`",
        )
    if facts.dead_letters:
        yield Finding(
            Severity.INFO,
            name,
            counted(facts.dead_letters, "dead letter"),
            f"see `aiozkqueue dlq list {name}`, then redrive or purge {'it' if facts.dead_letters == 1 else 'them'}",
        )
    yield from _of_leftovers(facts)
    yield from _of_acls(name, facts.open_to_all, facts.readable_by_all, ensemble)


def _of_reading(facts: QueueFacts) -> Iterator[Finding]:
    if not facts.complete:
        rest = f"; {counted(facts.lanes_left, 'lane')} {_was(facts.lanes_left)} not listed" if facts.lanes_left else ""
        yield Finding(
            Severity.WARNING,
            facts.name,
            f"only a part of it was checked within the time budget{rest}",
            f"allow more time with `aiozkqueue doctor --budget 10m {facts.name}`",
        )
    for reason in facts.unread:
        yield Finding(
            Severity.ERROR,
            facts.name,
            f"this user may not read a part of it, which was not checked: {reason}",
            "run doctor with the credentials of a user whom the ACL allows (AIOZKQUEUE_AUTH)",
        )


def _of_waiting(facts: QueueFacts) -> Iterator[Finding]:
    name = facts.name
    waiting = max(0, facts.size - facts.delayed - sum(write.messages for write in facts.unfinished))
    if facts.over_quota:
        yield _of_quota(name)
    if facts.paused:
        yield Finding(
            Severity.WARNING if waiting > 0 else Severity.INFO,
            name,
            f"is paused, and {counted(waiting, 'message')} {'waits' if waiting == 1 else 'wait'}",
            f"deliver them again with `aiozkqueue resume {name}`",
        )
    elif waiting > 0 and not facts.consumers and not facts.over_quota:  # which would refuse a consumer, too
        yield Finding(
            Severity.WARNING,
            name,
            f"{counted(waiting, 'message')} and no consumer",
            f"start a worker that consumes it; `aiozkqueue peek {name}` shows the messages",
        )


def _of_listing(name: str, folder: FolderFacts, limit: int, *, lane: bool) -> Iterator[Finding]:
    if folder.listing < LONG_LISTING * limit:
        return
    text = (
        f"a listing of the {counted(folder.children, 'znode')} in {folder.path} takes {folder.listing} of {limit} bytes"
    )
    advice = (
        f"spread new messages with `aiozkqueue configure {name} --shards N`, or consume faster"
        if lane
        else "take, redrive or purge messages"
    )
    over = folder.listing > limit
    yield Finding(
        Severity.ERROR if over else Severity.WARNING, name, text, f"{advice}: Java clients cannot read a longer listing"
    )


def _of_counter(name: str, lane: FolderFacts) -> Iterator[Finding]:
    if lane.counter >= LANE_END + (LANE_END >> 1):
        yield Finding(
            Severity.ERROR,
            name,
            f"the counter of {lane.path} is at {lane.counter}; it ends at {2 * LANE_END - 1}",
            "put a message with `aiozkqueue put`, which opens the next lane, and stop the programs that put here",
        )
    elif lane.counter >= LATE_COUNTER * LANE_END:
        yield Finding(
            Severity.INFO,
            name,
            f"the counter of {lane.path} is at {lane.counter}",
            f"a new lane is opened at {LANE_END}",
        )


def _of_unfinished(facts: QueueFacts) -> Iterator[Finding]:
    for write in facts.unfinished:
        old = facts.now is None or facts.now - write.changed > LONG_WRITE
        yield Finding(
            Severity.WARNING if old else Severity.INFO,
            facts.name,
            f"{counted(write.messages, 'staged message')} of {write.name!r} {'is' if write.messages == 1 else 'are'} "
            f"invisible: the batch, started {write.changed:%F %T} UTC, is not complete",
            f"if no job writes it now, run the job again (a stream, or a write with the same writeId), or remove the "
            f"messages: `aiozkqueue ledgers discard {facts.name} {write.writer}`",
        )


@dataclass(frozen=True, slots=True)
class _Leftover:
    """A kind of znodes that should not be there."""

    names: Callable[[QueueFacts], Sequence[str]]
    severity: Severity
    noun: str
    text: str
    advice: str
    """``{queue}`` stands for the name of the queue."""


_FORCE: Final = "delete them below {queue}/locks (`delete` in zkCli); their messages are then delivered again"
_LEFTOVERS: Final[tuple[_Leftover, ...]] = (
    _Leftover(
        lambda facts: facts.foreign,
        Severity.WARNING,
        "unknown znode",
        "among the messages",
        "delete them if no other program uses them",
    ),
    _Leftover(
        lambda facts: facts.endless_locks,
        Severity.ERROR,
        "lock",
        "that neither the end of a session nor a due time removes",
        _FORCE,
    ),
    _Leftover(
        lambda facts: facts.unannounced_locks, Severity.ERROR, "delayed message", "that nothing will release", _FORCE
    ),
    _Leftover(lambda facts: facts.orphan_locks, Severity.WARNING, "lock", "whose message is gone", "delete them"),
    _Leftover(
        lambda facts: facts.orphan_dues,
        Severity.WARNING,
        "due node",
        "whose lock is gone",
        "consumers remove them at their due time",
    ),
    _Leftover(
        lambda facts: facts.orphan_metas,
        Severity.WARNING,
        "attempt record",
        "whose message is gone",
        "`aiozkqueue clean {queue}` removes them, as running sessions do",
    ),
    _Leftover(
        lambda facts: facts.obstructed,
        Severity.ERROR,
        "message znode",
        "with children, so that ZooKeeper does not delete it",
        "delete the children: until then the messages cannot be settled",
    ),
    _Leftover(
        lambda facts: facts.unreadable,
        Severity.ERROR,
        "message znode",
        "that this user may not read",
        "set their ACLs (setAcl in zkCli), or delete them: this user's consumers skip their messages",
    ),
    _Leftover(
        lambda facts: facts.bad_tags,
        Severity.ERROR,
        "tag record",
        "that this user may not read, or that does not match its name",
        "set their ACLs, or delete them below filters/: this user's consumers with filters skip their messages",
    ),
)


def _of_leftovers(facts: QueueFacts) -> Iterator[Finding]:
    for kind in _LEFTOVERS:
        if names := kind.names(facts):
            text = f"{counted(len(names), kind.noun)} {kind.text}: {_some(names)}"
            yield Finding(kind.severity, facts.name, text, kind.advice.format(queue=facts.name))
    for pin in facts.old_pins:
        yield Finding(
            Severity.WARNING,
            facts.name,
            f"{pin!r} has protected the history from clean-up for a day",
            f"run the audit of this pin again, or remove the pin with `aiozkqueue pins remove {pin} {facts.name}`",
        )
    if facts.overdue:
        severity = Severity.ERROR if facts.consumers else Severity.INFO
        yield Finding(
            severity,
            facts.name,
            f"{counted(facts.overdue, 'message')} not released, although the delay has ended",
            "check that the consumers are running" if facts.consumers else "start a consumer, which releases them",
        )


def _of_acls(
    subject: str, open_to_all: Sequence[str], readable: Sequence[str], ensemble: EnsembleFacts
) -> Iterator[Finding]:
    if not ensemble.authenticated:
        return  # reported once, for all queues
    if open_to_all:
        yield Finding(
            Severity.ERROR,
            subject,
            f"everyone may change {len(open_to_all)} of its znodes: {_some(open_to_all)}",
            "set their ACLs (setAcl -R in zkCli): they were created without credentials",
        )
    if readable:
        yield Finding(
            Severity.WARNING,
            subject,
            f"everyone may read {len(readable)} of its znodes: {_some(readable)}",
            "set their ACLs (setAcl -R in zkCli) if this is not intended",
        )


def _was(number: int) -> str:
    return "was" if number == 1 else "were"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
