"""One soak: an ensemble, its clients, the faults, and the checks at the end."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import aiozkqueue as zq
from aiozkqueue.testing import EmbeddedEnsemble, ServerOptions
from tests.observer import observer
from tests.simulation.checker import check
from tests.simulation.history import History, Status
from tests.soak import final, transaction_log
from tests.soak.faults import Driver
from tests.soak.fleet import Fleet
from tests.soak.journal import OVER, Journal, lines, merge, resolve
from tests.soak.plan import (
    BUNDLE,
    CLAIMED_AHEAD,
    CLIENTS,
    CONNECT_TIMEOUT,
    LANES,
    LIMIT,
    ON_THE_WAY,
    POLICIES,
    ROOT,
    SESSION_TIMEOUT,
)
from tests.soak.waits import Waits, longest_waits

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.soak.faults import InjectedFault

#: Seconds that the clients may take without faults to empty the queues, and then again to end.
PATIENCE = 60.0
#: Seconds of work without faults, in which each program of each client must do something.
ROLL_CALL = 8.0


@dataclass
class Result:
    """The results of a soak."""

    seed: int
    seconds: float
    violations: list[str] = field(default_factory=list[str])
    history: History = field(default_factory=History)
    faults: list[InjectedFault] = field(default_factory=list["InjectedFault"])
    servers: transaction_log.ServerRecord = field(default_factory=transaction_log.ServerRecord)
    waits: Waits = field(default_factory=Waits)
    unresolved: int = 0


async def soak(seed: int, seconds: float, folder: Path, show: Callable[[str, float], None]) -> Result:
    """Run this many seconds with faults, then to the end without, and check.

    ``show(stage, seconds)`` shows the progress.
    """
    options = ServerOptions(heap=192, settings={"autopurge.purgeInterval": 0})  # the logs are evidence
    show("starting", 0)
    async with EmbeddedEnsemble(3, options, data_dir=folder / "servers") as ensemble:
        await _configure(ensemble.hosts)
        hosts = [node.hosts for node in ensemble.nodes]
        result = Result(seed, seconds)
        trouble: list[str] = []
        async with Fleet(CLIENTS, hosts, folder, seed) as fleet:
            driver = Driver(ensemble, fleet, seed)
            try:
                await _storm(driver, seconds, show)
                show("healing", seconds)
                await driver.heal()
                trouble += await _settle(fleet, ensemble.hosts, show, seconds)
            finally:
                result.faults = driver.injected
                await asyncio.to_thread(_write_faults, driver.injected, folder / "faults.jsonl")
            show("draining", seconds)
        await _drain(ensemble.hosts, folder)
        show("checking", seconds)
        async with observer(ensemble.hosts) as view:
            await asyncio.sleep(1.5 * SESSION_TIMEOUT)  # until the sessions of the clients killed last have ended
            seen = await final.read(view)
        result.servers = await asyncio.to_thread(transaction_log.read, [node.folder for node in ensemble.nodes])
    result.history = await asyncio.to_thread(_merged, folder)
    result.history.opened, result.history.ahead = driver.opened, CLAIMED_AHEAD
    result.history.trouble += trouble
    _account(result, seen)
    return result


def _merged(folder: Path) -> History:
    return merge(sorted(folder.glob("c*.jsonl")))


def _write_faults(faults: list[InjectedFault], path: Path) -> None:
    path.write_text("".join(f"{json.dumps(asdict(fault))}\n" for fault in faults))


def _account(result: Result, seen: final.Seen) -> None:
    history = result.history
    history.final, history.limits = seen.final, dict(LIMIT)
    ahead = time.time() - time.monotonic()
    history.sessions_over |= {session: at - ahead for session, at in result.servers.ended.items()}
    killed = sum(fault.kind == "client killed" for fault in result.faults)
    history.interrupted = ON_THE_WAY * (killed + len(result.servers.expired))
    result.unresolved = resolve(history)
    result.violations = [*check(history), *_dead_letters_count_right(history, seen)]
    result.waits = longest_waits(history, result.faults)


def _dead_letters_count_right(history: History, seen: final.Seen) -> list[str]:
    """Check each message for what the checker only checks in total: exhausted dead letters have all attempts recorded.

    Unseen attempts are those of sessions that ended between the record and the handler: at most this many.
    """
    deliveries = history.deliveries()
    rejected = {token for unit in history.units for token in unit.rejects}
    wrong, unseen = [], 0
    for queue, tokens in history.final.dead.items():
        limit = history.limits[queue]
        for token in tokens:
            attempts, reason = seen.attempts.get(token, (0, ""))
            if token in rejected:
                continue
            if limit is None or attempts != limit:
                wrong.append(f"dead letters: {token} of {queue!r} after {attempts} attempts of {limit}: {reason}")
            unseen += attempts - len(deliveries.get(token, ()))
    if unseen > history.interrupted:
        wrong.append(
            f"dead letters: {unseen} attempts were not seen by a handler, {history.interrupted} can be explained"
        )
    return wrong


async def _configure(hosts: str) -> None:
    async with zq.connect(hosts, root=ROOT, connect_timeout=CONNECT_TIMEOUT) as session:
        for name, policy in POLICIES.items():
            config = zq.QueueConfig(policy=policy, shards=LANES[name], bundle=BUNDLE[name])
            await session.queue(name).configure(config)


async def _storm(driver: Driver, seconds: float, show: Callable[[str, float], None]) -> None:
    began = time.monotonic()

    async def watch() -> None:
        while True:
            kind = driver.injected[-1].kind if driver.injected else "no fault yet"
            show(kind, time.monotonic() - began)
            await asyncio.sleep(0.5)

    await asyncio.sleep(2)  # the clients start
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as tasks:
            tasks.create_task(driver.break_servers())
            tasks.create_task(driver.break_clients())
            tasks.create_task(driver.break_claims())
            tasks.create_task(watch())


async def _settle(fleet: Fleet, hosts: str, show: Callable[[str, float], None], seconds: float) -> list[str]:
    """Let the clients continue without faults: all must work, empty the queues, and end. Return what went wrong."""
    trouble: list[str] = []
    healed = time.monotonic()
    show("roll call", seconds)
    # A client that was stopped for long finds that its session has ended, and must begin a new one.
    silent = {member.name: member for member in fleet.members}
    while silent and time.monotonic() < healed + PATIENCE:
        await asyncio.sleep(ROLL_CALL)
        for name, member in list(silent.items()):
            if await asyncio.to_thread(_took_part, member.journal, healed, fleet_programs(member.number)):
                del silent[name]
    for member in silent.values():
        member.signal(signal.SIGUSR2)
    trouble += [f"{name}: one of its programs did nothing for {PATIENCE:g} s without faults" for name in silent]
    show("emptying", seconds)
    for member in fleet.members:
        member.signal(signal.SIGUSR1)
    trouble += await _emptied(hosts)
    for member in fleet.members:
        member.signal(signal.SIGTERM)
    for member in fleet.members:
        if (code := await member.ended(PATIENCE)) != 0:
            trouble.append(f"{member.name} {'does not end' if code is None else f'ended with {code}'}")
    return trouble


def fleet_programs(number: int) -> set[str]:
    """Return the program names in the units of a client."""
    return {program.replace(":", " ") for program in CLIENTS[number].split(",")}


def _took_part(journal: Path, since: float, programs: set[str]) -> bool:
    seen = {line["unit"].split("/")[1] for line in lines(journal) if line["event"] == "end" and line["at"] > since}
    return programs <= seen


async def _emptied(hosts: str) -> list[str]:
    deadline = time.monotonic() + PATIENCE
    async with zq.connect(hosts, root=ROOT, connect_timeout=CONNECT_TIMEOUT) as session:
        while left := {name: size for name in LIMIT if (size := await session.queue(name).size())}:
            if time.monotonic() > deadline:
                return [f"stuck: {left} after {PATIENCE:g} s without faults"]
            await asyncio.sleep(0.2)
    return []


async def _drain(hosts: str, folder: Path) -> None:
    """Take the remaining messages."""
    journal = Journal(folder / "c-last.jsonl", "last")
    async with zq.connect(hosts, root=ROOT, connect_timeout=CONNECT_TIMEOUT) as session:
        for name in LIMIT:
            left = True
            while left:
                unit = journal.unit("drain")
                async with session.transaction() as tx:
                    messages = await tx.take_many(session.queue(name), 50, timeout=SESSION_TIMEOUT)
                    for message in messages:
                        unit.show(message.value.decode(), name, session._runtime.zookeeper.session_id or OVER)
                    unit.release_unseen()
                unit.end(Status.COMMITTED)
                left = bool(messages)
