"""`aiozkqueue doctor`: problems of servers and queues, with advice."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import aiozkqueue as zq
from aiozkqueue.admin import Finding, Severity
from aiozkqueue.cli import bars, output
from aiozkqueue.cli.arguments import AsJson, LookBudget, SomeQueues
from aiozkqueue.cli.connection import Connection, connected
from aiozkqueue.cli.exits import Exit
from aiozkqueue.operations.budget import BUDGET
from aiozkqueue.operations.doctor.diagnosis import by_severity, of_moves, of_servers
from aiozkqueue.operations.doctor.probe import examine_servers
from aiozkqueue.schedule.overdue import overdue_jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.admin import Diagnosis, QueueFacts
    from aiozkqueue.operations.doctor.facts import ServerFacts


@connected
async def doctor(
    connection: Connection,
    queues: SomeQueues = None,
    budget: LookBudget = BUDGET,
    as_json: AsJson = False,
) -> Exit:
    """Examine the servers and the queues for problems.

    Exit status 1: it finds an error. If no server accepts a session, it examines only the servers.

    Checks latency, limits, clocks, leftovers, jobs and access, and changes nothing. It lists each queue, which costs
    the servers time for deep queues. After the time budget, it stops and names the queues that it has not examined.

    Examples:
    [dim]$ aiozkqueue doctor
    $ aiozkqueue doctor orders --json | jq -r 'select(.kind == "finding").text'[/dim]
    """
    try:
        async with connection.open() as session:
            with bars.waiting("examining the servers and the queues"):
                diagnosis = await session.admin.diagnose(*(queues or ()), budget=budget)
            if not queues:
                further = await _of_jobs_and_moves(session, diagnosis.ensemble.clock_offset or 0)
                diagnosis = replace(diagnosis, findings=by_severity([*diagnosis.findings, *further]))
    except zq.ConnectionLostError:
        servers = await examine_servers(connection.servers, connection.tls_context())
        findings = by_severity(of_servers(servers))
        (_print_servers_json if as_json else _print_servers)(servers)
        (_print_findings_json if as_json else _print_findings)(findings)
        raise
    (_print_json if as_json else _print_tables)(diagnosis)
    return Exit.NOTHING if diagnosis.count(Severity.ERROR) else Exit.OK


async def _of_jobs_and_moves(session: zq.QueueSession, clock_offset: float) -> list[Finding]:
    found: list[Finding] = []
    try:
        found += await overdue_jobs(session, clock_offset)
    except zq.AccessDeniedError as error:
        found.append(_unread("jobs", error))
    try:
        found += of_moves(await session.admin.moves.all())
    except zq.AccessDeniedError as error:
        found.append(_unread("moves", error))
    return found


def _unread(what: str, error: zq.AccessDeniedError) -> Finding:
    return Finding(Severity.WARNING, what, str(error), "examine them with the credentials of a user who may read them")


def _print_json(diagnosis: Diagnosis) -> None:
    ensemble = diagnosis.ensemble
    _print_servers_json(ensemble.servers)
    output.print_json(
        {
            "kind": "session",
            "session_timeout": ensemble.session_timeout,
            "request_limit": ensemble.request_limit,
            "read_p50": ensemble.read.p50,
            "read_max": ensemble.read.most,
            "write_p50": ensemble.write.p50 if ensemble.write else None,
            "write_max": ensemble.write.most if ensemble.write else None,
            "clock_offset": ensemble.clock_offset,
            "authenticated": ensemble.authenticated,
            "old_slots": ensemble.old_slots,
        }
    )
    for queue in diagnosis.queues:
        output.print_json(
            {
                "kind": "queue",
                "queue": queue.name,
                "size": queue.size,
                "paused": queue.paused,
                "consumers": queue.consumers,
                "dead_letters": queue.dead_letters,
                "complete": queue.complete,
                "lanes_left": queue.lanes_left,
                "folders": {
                    folder.path: {"children": folder.children, "listing": folder.listing, "counter": folder.counter}
                    for folder in (*queue.lanes, *queue.folders)
                },
            }
        )
    _print_findings_json(diagnosis.findings)


def _print_servers_json(servers: Sequence[ServerFacts]) -> None:
    for server in servers:
        output.print_json(
            {
                "kind": "server",
                "address": server.address,
                "reachable": server.reachable,
                "version": server.version,
                "mode": server.mode,
                "files": server.files,
            }
        )


def _print_findings_json(findings: Sequence[Finding]) -> None:
    for finding in findings:
        output.print_json({"kind": "finding", **output.record_of(finding)})


def _print_servers(servers: Sequence[ServerFacts]) -> None:
    output.print_table(
        ["server", "version", "mode"],
        [(s.address, s.version or ("not reported" if s.reachable else "unreachable"), s.mode or "") for s in servers],
    )


def _print_findings(findings: Sequence[Finding]) -> None:
    if findings:
        output.print_table(
            ["", "where", "what", "advice"],
            [(finding.severity.value, finding.subject, finding.text, finding.advice) for finding in findings],
        )


def _print_tables(diagnosis: Diagnosis) -> None:
    ensemble = diagnosis.ensemble
    _print_servers(ensemble.servers)
    write, offset = ensemble.write, ensemble.clock_offset
    output.print_table(
        ["session timeout", "request limit", "read p50 / max", "write p50 / max", "clock offset"],
        [
            (
                f"{ensemble.session_timeout:g} s",
                f"{ensemble.request_limit} bytes",
                _milliseconds(ensemble.read.p50, ensemble.read.most),
                _milliseconds(write.p50, write.most) if write else "refused",
                "unknown" if offset is None else f"{offset * 1000:+.0f} ms".replace("-0 ms", "+0 ms"),
            )
        ],
    )
    if diagnosis.queues:
        output.print_table(
            ["queue", "size", "consumers", "dead letters", "longest listing", "highest counter"],
            [
                (
                    f"{queue.name}{' (paused)' if queue.paused else ''}{'' if queue.complete else ' (in part)'}",
                    queue.size,
                    queue.consumers,
                    queue.dead_letters,
                    f"{_longest(queue) / ensemble.request_limit:.0%}",
                    max((lane.counter for lane in queue.lanes), default=0),
                )
                for queue in diagnosis.queues
            ],
        )
    _print_findings(diagnosis.findings)
    verdict = _verdict(diagnosis.count(Severity.ERROR), diagnosis.count(Severity.WARNING))
    if not diagnosis.complete:
        verdict += "; not everything was examined within the time budget"
    output.print_verdict(verdict, good=diagnosis.healthy)


def _verdict(errors: int, warnings: int) -> str:
    if errors:
        return "something is wrong"
    if warnings:
        return f"works, with {warnings} warning{'' if warnings == 1 else 's'}"
    return "healthy"


def _longest(queue: QueueFacts) -> int:
    return max((folder.listing for folder in (*queue.lanes, *queue.folders)), default=0)


def _milliseconds(p50: float, most: float) -> str:
    return f"{p50 * 1000:.1f} / {most * 1000:.1f} ms"
