"""`aiozkqueue dlq`: the dead letters of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from aiozkqueue.cli import bars, output
from aiozkqueue.cli.arguments import AsJson, Yes
from aiozkqueue.cli.asked import AskedQueue, asks_queue
from aiozkqueue.cli.connection import Connection, connected
from aiozkqueue.cli.exits import Exit
from aiozkqueue.wording import counted

if TYPE_CHECKING:
    import aiozkqueue as zq

_Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Message ids (default: all).")]
_Reason = Annotated[str | None, typer.Option(metavar="TEXT", help="Only those whose reason contains this text.")]
_Search = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="Only those whose id, reason, key, group or payload contains this text."),
]

#: The number of the oldest dead letters that ``--reason`` and ``--search`` examine.
EXAMINED: Final = 5_000


@connected
@asks_queue
async def list_(
    connection: Connection,
    queue: AskedQueue,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The maximum number of dead letters.")] = 10,
    reason: _Reason = None,
    search: _Search = None,
    as_json: AsJson = False,
) -> Exit:
    """List dead letters and the reason for each.

    --reason and --search examine the 5,000 oldest. Exit status 1: there are none.

    Examples:
    [dim]$ aiozkqueue dlq list orders --limit 100
    $ aiozkqueue dlq list orders --reason 'out of stock'[/dim]
    """
    async with connection.open_queue(queue) as target:
        letters = await _found(target, reason, search, limit)
        total = await target.dead_letters.size()
    if as_json:
        for letter in letters:
            record = output.message_record(letter)
            output.print_json({**record, "attempt": letter.attempts, "reason": letter.reason})
    elif letters:
        _print_table(letters)
        if len(letters) == limit < total:
            output.note(f"{limit} of {counted(total, 'dead letter')} are shown; --limit shows more")
    which = "no dead letters" if reason is None and search is None else "no matching dead letters"
    return output.status_of_list(letters, f"queue {queue.name!r} has {which}")


@connected
@asks_queue
async def redrive(
    connection: Connection,
    queue: AskedQueue,
    ids: _Ids = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="The maximum number of dead letters.")
    ] = None,
    reason: _Reason = None,
    search: _Search = None,
    into: Annotated[str | None, typer.Option(metavar="QUEUE", help="Put them into this queue instead.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show which would be put back, without changing anything.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> Exit:
    """Put dead letters back into their queue, starting again at attempt 1.

    Asks for confirmation, except for dead letters that are named by their ids. --reason and --search examine the
    5,000 oldest. Exit status 1: there were none.

    Examples:
    [dim]$ aiozkqueue dlq redrive orders --dry-run
    $ aiozkqueue dlq redrive orders --limit 1 --yes
    $ aiozkqueue dlq redrive orders --reason 'out of stock' --into backorders[/dim]
    """
    async with connection.open_queue(queue) as target:
        chosen = await _chosen(target, ids, reason, search)
        letters = target.dead_letters
        moved = 0
        await _note_absent(target, ids)
        total = await letters.size() if chosen is None else len(chosen)
        if dry_run:
            return await _rehearse(target, chosen, limit, total, as_json=as_json)
        count = counted(total if limit is None else min(limit, total), "dead letter")
        where = f"back into {queue.name}" if into is None else f"of {queue.name} into {into}"
        output.confirm(f"Put {count} {where}?", yes=yes or bool(ids))
        if chosen != []:
            redriving = letters.redrive(chosen, limit=limit, into=into)
            moved = await bars.watched(f"redrive {queue.name}", redriving, total, letters.size)
    output.print_count("redriven", moved, queue.name, as_json=as_json)
    return Exit.OK if moved else Exit.NOTHING


@connected
@asks_queue
async def purge(
    connection: Connection,
    queue: AskedQueue,
    ids: _Ids = None,
    reason: _Reason = None,
    search: _Search = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> Exit:
    """Delete dead letters permanently.

    --reason and --search examine the 5,000 oldest.

    Example:
    [dim]$ aiozkqueue dlq purge orders --yes[/dim]
    """
    async with connection.open_queue(queue) as target:
        letters, chosen = target.dead_letters, await _chosen(target, ids, reason, search)
        total = await letters.size() if chosen is None else len(chosen)
        await _note_absent(target, ids)
        output.confirm(f"Delete {counted(total, 'dead letter')} of {queue.name}?", yes=yes)
        purged = 0
        if chosen != []:
            purged = await bars.watched(f"purge {queue.name}", letters.purge(chosen), total, letters.size)
    output.print_count("purged", purged, queue.name, as_json=as_json)
    return Exit.OK


async def _rehearse(
    target: zq.Queue[bytes], chosen: list[str] | None, limit: int | None, total: int, *, as_json: bool
) -> Exit:
    """Show the dead letters that would be redriven: ``chosen`` (None: all), up to ``limit``."""
    letters = await target.dead_letters.peek(EXAMINED)
    if chosen is not None:
        wanted = set(chosen)
        letters = [letter for letter in letters if letter.id in wanted]
        if len(letters) == total or await target.dead_letters.size() <= EXAMINED:
            total = len(letters)  # the other ids are those of no dead letters
    letters = letters[:limit]
    count = total if limit is None else min(limit, total)
    if as_json:
        output.print_json({"queue": target.name, "redriven": 0, "would_redrive": [letter.id for letter in letters]})
    else:
        if letters:
            _print_table(letters)
        output.print_count("would be redriven", count, target.name, as_json=False)
    if len(letters) < count:
        output.note(f"the {len(letters)} oldest of {counted(count, 'dead letter')} are shown")
    return Exit.OK if letters else Exit.NOTHING


def _print_table(letters: list[zq.DeadLetter[bytes]]) -> None:
    output.print_table(
        ["id", "attempts", "enqueued", "reason", "payload"],
        [(d.id, d.attempts, output.when(d.enqueued_at), d.reason, output.preview(d.body)) for d in letters],
    )


async def _found(
    target: zq.Queue[bytes], reason: str | None, search: str | None, limit: int
) -> list[zq.DeadLetter[bytes]]:
    """Return the oldest dead letters that match."""
    if reason is None and search is None:
        return await target.dead_letters.peek(limit)
    letters = await target.dead_letters.peek(EXAMINED)
    if len(letters) == EXAMINED:
        output.note(f"only the {EXAMINED} oldest dead letters of queue {target.name!r} were examined")
    matching = [letter for letter in letters if _matches(letter, (reason or "").casefold(), (search or "").casefold())]
    return matching[:limit]


async def _chosen(
    target: zq.Queue[bytes], ids: list[str] | None, reason: str | None, search: str | None
) -> list[str] | None:
    """Return the ids that the command line selects; None: all. Raises: typer.BadParameter."""
    if reason is None and search is None:
        return ids or None
    if ids:
        message = "ids cannot be combined with --reason and --search"
        raise typer.BadParameter(message)
    return [letter.id for letter in await _found(target, reason, search, EXAMINED)]


async def _note_absent(target: zq.Queue[bytes], ids: list[str] | None) -> None:
    """Print which ids are not those of dead letters, unless there are too many to know."""
    if not ids:
        return
    letters = await target.dead_letters.peek(EXAMINED)
    if len(letters) < EXAMINED:
        known = {letter.id for letter in letters}
        for absent in dict.fromkeys(message_id for message_id in ids if message_id not in known):
            output.note(f"there is no dead letter {absent} in queue {target.name!r}")


def _matches(letter: zq.DeadLetter[bytes], reason: str, text: str) -> bool:
    texts = (letter.id, letter.reason, letter.key or "", letter.group or "", letter.body.decode("utf-8", "replace"))
    return reason in letter.reason.casefold() and any(text in value.casefold() for value in texts)
