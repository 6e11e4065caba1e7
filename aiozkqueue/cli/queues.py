"""`aiozkqueue queues`, `stats` and `purge`: queues as a whole."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiozkqueue as zq
from aiozkqueue.admin import QueueStats
from aiozkqueue.cli import bars, output
from aiozkqueue.cli.arguments import AsJson, LookBudget, SomeQueues, Yes
from aiozkqueue.cli.asked import (
    AskedQueue,
    Compressed,
    CuratorKindOption,
    CuratorPath,
    KazooPath,
    LockPath,
    Unlocked,
    asks_queue,
    excludes_names,
    other_programs_queue,
)
from aiozkqueue.cli.connection import Connection, connected
from aiozkqueue.cli.exits import Exit
from aiozkqueue.operations.budget import BUDGET, Budget
from aiozkqueue.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aiozkqueue.cli.output import Json


@connected
async def queues(connection: Connection, as_json: AsJson = False) -> Exit:
    """List the names of all queues.

    Exit status 1: there are none.

    Example:
    [dim]$ aiozkqueue queues | xargs aiozkqueue pause[/dim]
    """
    async with connection.open() as session:
        names = sorted(await session.queues())
    for name in names:
        if as_json:
            output.print_json({"queue": name})
        else:
            sys.stdout.write(f"{output.visible(name)}\n")
    return output.status_of_list(names, f"there are no queues below {connection.root}")


@connected
async def stats(
    connection: Connection,
    queues: SomeQueues = None,
    budget: LookBudget = BUDGET,
    as_json: AsJson = False,
    curator: CuratorPath = None,
    kazoo: KazooPath = None,
    lock_path: LockPath = None,
    kind: CuratorKindOption = None,
    compressed: Compressed = False,
    unlocked: Unlocked = False,
) -> Exit:
    """Show the figures of queues: messages by state, dead letters, consumers.

    Exit status 1: a named queue does not exist.

    The end of the output names queues that cannot be read, and figures and queues that were skipped because the time
    budget ran out.

    Examples:
    [dim]$ aiozkqueue stats
    $ aiozkqueue stats orders invoices --json[/dim]
    """
    other = other_programs_queue(curator, kazoo, lock_path, kind, compressed, unlocked)
    names = _named(other, queues or [])
    async with connection.open() as session:
        asked = [(name, name.of(session)) for name in names or map(AskedQueue, await session.queues())]
        with bars.waiting("reading the queues"):
            seen = await _read_figures(asked, Budget(budget), named=bool(names))
        for name in seen.absent:
            await connection.note_absent(session, name)
    if not asked:
        output.note(f"there are no queues below {connection.root}")
    if as_json:
        for figures in seen.found:
            output.print_json(_record(figures, seen.staged[figures.queue]))
    elif seen.found:
        _print_stats(seen.found, seen.staged)
    _note_incomplete(seen)
    seen.unread.report()
    if any(figures.unreadable for figures in seen.found):
        return Exit.REFUSED
    return Exit.OK if seen.found and not seen.absent else Exit.NOTHING


@dataclass
class _Seen:
    """The results of reading several queues."""

    found: list[QueueStats] = field(default_factory=list[QueueStats])
    staged: dict[str, int] = field(default_factory=dict[str, int])
    """The number of staged messages, which are not visible yet, by queue."""
    absent: list[AskedQueue] = field(default_factory=list[AskedQueue])
    unread: output.Unread = field(default_factory=output.Unread)
    unseen: int = 0
    """The number of queues that were not read because the time budget ran out."""


async def _read_figures(asked: Sequence[tuple[AskedQueue, zq.Queue[bytes]]], budget: Budget, *, named: bool) -> _Seen:
    """Read the figures of queues until the time is up. Unless they are ``named``, leave out those deleted meanwhile."""
    seen = _Seen()
    for number, (name, queue) in enumerate(asked):
        share = budget.share(len(asked) - number).left
        if not share:
            seen.unseen = len(asked) - number
            break
        with seen.unread.kept():
            if await queue.exists():
                seen.found.append(await queue.stats(budget=share))
                seen.staged[queue.name] = 0
                seen.staged[queue.name] = await _staged(queue, seen.found[-1])
            elif named:
                seen.absent.append(name)
    return seen


def _note_incomplete(seen: _Seen) -> None:
    """Print which figures were not read within the time budget, or leave out what this user may not read."""
    for figures in seen.found:
        if figures.incomplete:
            output.note(
                f"queue {figures.queue!r}: not read completely within the time budget: {', '.join(figures.incomplete)}"
                "; allow more with --budget"
            )
        if figures.unreadable:
            names, reason = ", ".join(figures.unreadable), next(iter(figures.unreadable.values()))
            output.note(f"queue {figures.queue!r}: this user may not read everything for {names}: {reason}")
    if seen.unseen:
        unseen = f"{counted(seen.unseen, 'queue')} {'was' if seen.unseen == 1 else 'were'}"
        output.note(f"{unseen} not checked within the time budget; name some, or allow more with --budget")


def _record(s: QueueStats, staged: int) -> dict[str, Json]:
    """Return the figures of a queue as they are printed in JSON."""
    first: dict[str, Json] = {
        "queue": s.queue,
        "size": s.size,
        "waiting": s.waiting,
        "in_flight": s.in_flight,
        "delayed": s.delayed,
    }
    last: dict[str, Json] = {"remaining_capacity": s.remaining_capacity, "staged_messages": staged}
    return {**first, **output.record_of(s), **last}


def _named(other: AskedQueue | None, queues: Sequence[str]) -> list[AskedQueue]:
    """Return the queues that the command line names. Raises: typer.BadParameter."""
    if other is None:
        return list(map(AskedQueue, queues))
    if queues:
        raise excludes_names(other, queues[0])
    return [other]


async def _staged(queue: zq.Queue[bytes], stats: QueueStats) -> int:
    return sum(info.messages for info in await queue.admin.unfinished()) if stats.staged and not stats.incomplete else 0


def _print_stats(found: Sequence[QueueStats], staged: Mapping[str, int]) -> None:
    """Print a table for which 80 columns suffice; rare figures have a column only if they are not 0."""
    columns: dict[str, Callable[[QueueStats], object]] = {
        "queue": lambda figures: f"{figures.queue} (paused)" if figures.paused else figures.queue,
        "size": lambda figures: figures.size,
        "waiting": lambda figures: figures.waiting,
        "in flight": lambda figures: figures.in_flight,
        "delayed": lambda figures: figures.delayed,
        "retrying": lambda figures: figures.retrying,
        "dead letters": lambda figures: figures.dead_letters,
        "consumers": lambda figures: figures.consumers,
        "oldest": lambda figures: "" if figures.oldest_age is None else output.age(figures.oldest_age),
    }
    if any(figures.scheduled for figures in found):
        columns["scheduled"] = lambda figures: figures.scheduled
    if any(figures.remaining_capacity is not None for figures in found):
        columns["remaining"] = _remaining
    if any(staged.values()):
        columns["staged"] = lambda figures: staged[figures.queue]
    rows = [[cell(figures) for cell in columns.values()] for figures in found]
    output.print_table(list(columns), rows, frame=False)


def _remaining(figures: QueueStats) -> str:
    remaining = figures.remaining_capacity
    return "" if remaining is None else f"{remaining} of {figures.max_size}"


@connected
@asks_queue
async def purge(
    connection: Connection,
    queue: AskedQueue,
    yes: Yes = False,
    as_json: AsJson = False,
) -> Exit:
    """Delete all messages that are not in flight; keep dead letters.

    Example:
    [dim]$ aiozkqueue purge orders --yes[/dim]
    """
    async with connection.open_queue(queue) as target:
        total = await target.size()
        output.confirm(f"Delete {counted(total, 'message')} of {queue.name}?", yes=yes)
        purged = await bars.watched(f"purge {queue.name}", target.purge(), total, target.size)
    output.print_count("purged", purged, queue.name, as_json=as_json)
    return Exit.OK
