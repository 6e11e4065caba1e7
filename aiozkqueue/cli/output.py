"""What is printed: results to stdout, as tables or as JSON, one object a line; all else to stderr.

Rich is imported only to draw something, which most commands in scripts never do.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import typer

from aiozkqueue import Message

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Json: TypeAlias = "str | int | float | bool | Sequence[Json] | Mapping[str, Json] | None"

_PREVIEW: Final = 60


def print_json(record: Mapping[str, Json]) -> None:
    """One object, on one line, sent at once."""
    sys.stdout.write(json_line(record) + "\n")
    sys.stdout.flush()


def json_line(record: Mapping[str, Json]) -> str:
    """One object on one line, with every character escaped that is not printable.

    Programs that split at line separators other than a newline read one object a line, and a terminal is not steered.
    """
    text = json.dumps(record, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


#: Columns whose cells go into the next command: they stay whole while the window is wide enough for them.
_COPIED: Final = {"id", "reference"}
#: What a column takes besides its cells: a line, and a space at either side.
_BORDER: Final = 3


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
    """A table for people; in a window too narrow for its columns' names, one below the other for each row.

    Cells are shown as they are: no markup, no control characters.
    """
    from rich.console import Console  # noqa: PLC0415 - see above
    from rich.table import Column, Table  # noqa: PLC0415 - see above
    from rich.text import Text  # noqa: PLC0415 - see above

    console = Console()
    if sum(max(map(len, name.split()), default=0) + _BORDER for name in columns) >= console.width:
        for row in rows:
            record = Table(Column(overflow="fold"), Column(overflow="fold"), title=title, title_justify="left")
            record.show_header = False
            for name, cell in zip(columns, row, strict=True):
                record.add_row(name, Text(visible(str(cell))))
            console.print(record)
            title = None
        return
    table = Table(
        *(Column(name, no_wrap=name in _COPIED, overflow="fold") for name in columns), title=title, title_justify="left"
    )
    for row in rows:
        table.add_row(*(Text(visible(str(cell)), justify=_justify(cell)) for cell in row))
    console.print(table)


def print_count(done: str, count: int, queue: str, *, as_json: bool) -> None:
    """How many messages something was done to."""
    if as_json:
        print_json({"queue": queue, done: count})
    else:
        sys.stdout.write(f"{count} {done}\n")


def print_verdict(text: str, *, good: bool) -> None:
    """How it ended, in one coloured sentence."""
    from rich.console import Console  # noqa: PLC0415 - see above

    Console().print(text, style="bold green" if good else "bold red")


def note(text: str) -> None:
    """One line to stderr: an error, or the state of the work. Characters that are not printable are escaped."""
    sys.stderr.write(f"aiozkqueue: {visible(' '.join(text.split()))}\n")
    sys.stderr.flush()


def message_record(message: Message[bytes]) -> dict[str, Json]:
    """A message as JSON: the payload as text if it is UTF-8, in base64 under another name if not."""
    record: dict[str, Json] = {
        "id": message.id,
        "queue": message.queue,
        "attempt": message.attempt,
        "enqueued_at": message.enqueued_at.isoformat(),
        "headers": dict(message.headers),
    }
    if message.priority:
        record["priority"] = message.priority
    if message.group is not None:
        record["group"] = message.group
    if message.key is not None:
        record["key"] = message.key
    if message.filters:
        record["filters"] = dict(message.filters)
    try:
        record["body"] = message.body.decode()
    except UnicodeDecodeError:
        record["body_base64"] = base64.b64encode(message.body).decode()
    return record


def preview(body: bytes) -> str:
    """The beginning of a payload, for a table's cell."""
    return shortened(body[: 4 * _PREVIEW].decode(errors="backslashreplace"))


def shortened(text: str) -> str:
    """The beginning of a text, for a table's cell."""
    return text if len(text) <= _PREVIEW else text[: _PREVIEW - 1] + "…"


def visible(text: str) -> str:
    """The text with control characters escaped: a payload must not steer the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def when(moment: datetime | None) -> str:
    """A time for a table's cell, in the reader's zone."""
    return "" if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is destroyed.

    Raises: typer.Exit when the answer is no; typer.BadParameter when nobody is there to give one.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        message = "nobody is there to ask: say --yes to do it"
        raise typer.BadParameter(message)
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)


class Bar:
    """How far the work has come."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def advance(self, amount: float = 1) -> None:
        """So much more is done."""
        self._progress.advance(self._task, amount)

    def reach(self, done: float, total: float) -> None:
        """So much is done, of so much that is known of by now."""
        self._progress.update(self._task, completed=done, total=total)

    def tell(self, text: str) -> None:
        """What is being done now."""
        self._progress.update(self._task, description=text)


@contextmanager
def progress(text: str, total: float | None) -> Iterator[Bar]:
    """A bar on stderr while the work lasts, if somebody watches."""
    from rich.console import Console  # noqa: PLC0415 - see above
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415 - see above

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as shown:
        yield Bar(shown, shown.add_task(text, total=total))


def _justify(cell: object) -> Literal["left", "right"]:
    return "right" if isinstance(cell, int | float) else "left"
