"""Output: results go to stdout, as tables or as JSON with one object a line; everything else goes to stderr.

Rich is imported only to draw, which most commands in scripts never do.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

import typer

from aiozkqueue import Message
from aiozkqueue.cli.exits import Exit
from aiozkqueue.errors import AccessDeniedError, PayloadError

if TYPE_CHECKING:
    from io import TextIOWrapper

    from _typeshed import DataclassInstance
    from rich.console import Console

_Side: TypeAlias = Literal["left", "right"]
Json: TypeAlias = "str | int | float | bool | Sequence[Json] | Mapping[str, Json] | None"

_PREVIEW: Final = 60


def print_json(record: Mapping[str, Json]) -> None:
    """Print one object on one line, and flush it. Characters that stdout's encoding does not have are escaped."""
    line = json_line(record)
    try:
        line.encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        line = json.dumps(record)
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def json_line(record: Mapping[str, Json]) -> str:
    """Return one object on one line, with all unprintable characters escaped.

    So programs that split at line separators other than a newline still read one object a line, and a terminal
    interprets no control characters.
    """
    text = json.dumps(record, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def escape_unencodable() -> None:
    """Let stdout escape the characters that its encoding does not have, as stderr does: payloads may have any."""
    if sys.stdout.errors == "strict":
        cast("TextIOWrapper", sys.stdout).reconfigure(errors="backslashreplace")


def record_of(info: DataclassInstance) -> dict[str, Json]:
    """Return the fields of a dataclass as JSON: times in ISO 8601, and members of enumerations by their values."""
    return {field.name: _json_of(getattr(info, field.name)) for field in fields(info)}


def _json_of(value: object) -> Json:
    if is_dataclass(value) and not isinstance(value, type):
        return record_of(value)
    if isinstance(value, datetime):
        return value.isoformat()
    return cast("Json", value.value if isinstance(value, Enum) else value)


#: The width of a table in a pipe or a file: any.
_ENDLESS: Final = 1_000_000


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None, frame: bool = True
) -> None:
    """Print a table for people; in a window that is too narrow for it, one block of lines per row.

    Cells are shown as they are: no markup, no control characters. Without a ``frame``, more columns fit; the frame is
    omitted in a window that is too narrow for it. A pipe or a file limits the width only if COLUMNS is set.
    """
    from rich.text import Text  # noqa: PLC0415 - see above

    from aiozkqueue.cli.widths import fitted  # noqa: PLC0415 - see above

    console = console_of_stdout()
    given = list(rows)
    sides: list[list[_Side]]
    shown = [[visible(str(cell)) for cell in row] for row in given]
    if title is not None:
        console.print(Text(title), style="table.title", soft_wrap=True)
    for layout in _LAYOUTS[not frame :]:
        widths = fitted(columns, shown, console.width - layout.edges - layout.between * (len(columns) - 1))
        if widths is not None:
            sides = [[_justify(cell) for cell in row] for row in given]
            _draw(console, columns, shown, sides, widths, layout)
            return
    for row in shown:
        _draw_record(console, columns, row)


def console_of_stdout() -> Console:
    """Return a console as wide as the window; without a window and without COLUMNS, its width has no limit."""
    from rich.console import Console  # noqa: PLC0415 - see above

    limited = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return Console() if limited else Console(width=_ENDLESS)


@dataclass(frozen=True, slots=True)
class _Layout:
    """A way to draw a table."""

    framed: bool
    padding: tuple[int, int, int, int]
    edges: int
    """The width of the table besides its cells and the gaps between them."""
    between: int
    """The width of a gap between two cells."""


#: The ways to draw a table, the widest first.
_LAYOUTS: Final = (
    _Layout(framed=True, padding=(0, 1, 0, 1), edges=4, between=3),
    _Layout(framed=False, padding=(0, 1, 0, 0), edges=1, between=2),
    _Layout(framed=False, padding=(0, 0, 0, 0), edges=0, between=1),
)


def _draw(
    console: Console,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    sides: Sequence[Sequence[_Side]],
    widths: Sequence[int],
    layout: _Layout,
) -> None:
    from rich import box  # noqa: PLC0415 - see above
    from rich.table import Column, Table  # noqa: PLC0415 - see above
    from rich.text import Text  # noqa: PLC0415 - see above

    table = Table(
        *(Column(name, overflow="fold", width=width) for name, width in zip(columns, widths, strict=True)),
        box=box.HEAVY_HEAD if layout.framed else box.SIMPLE_HEAD,
        padding=layout.padding,
        show_edge=layout.framed,
    )
    for row, row_sides in zip(rows, sides, strict=True):
        table.add_row(*(Text(cell, justify=side) for cell, side in zip(row, row_sides, strict=True)))
    console.print(table)


def _draw_record(console: Console, columns: Sequence[str], row: Sequence[str]) -> None:
    from rich.table import Column, Table  # noqa: PLC0415 - see above
    from rich.text import Text  # noqa: PLC0415 - see above

    record = Table(Column(no_wrap=True), Column(overflow="fold"), show_header=False)
    for name, cell in zip(columns, row, strict=True):
        record.add_row(name, Text(cell))
    console.print(record)


def print_count(done: str, count: int, queue: str, *, as_json: bool) -> None:
    """Print the number of affected messages."""
    if as_json:
        print_json({"queue": queue, done: count})
    else:
        sys.stdout.write(f"{count} {done}\n")


def print_verdict(text: str, *, good: bool) -> None:
    """Print the result in one coloured sentence."""
    console_of_stdout().print(text, style="bold green" if good else "bold red", soft_wrap=True)


def note(text: str) -> None:
    """Print one line to stderr: an error, or the progress. Unprintable characters are escaped."""
    sys.stderr.write(f"aiozkqueue: {visible(' '.join(text.split()))}\n")
    sys.stderr.flush()


def status_of_list(found: Collection[object], nothing: str) -> Exit:
    """Return the exit status of a command that lists these, and print ``nothing`` to stderr if there are none."""
    if not found:
        note(nothing)
    return Exit.OK if found else Exit.NOTHING


class Unread:
    """The errors of listed things that cannot be read; the others are printed before them."""

    def __init__(self, errors: Iterable[AccessDeniedError | PayloadError] = ()) -> None:
        self._errors = list(errors)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep the error of one of them, and continue with the next one."""
        try:
            yield
        except (AccessDeniedError, PayloadError) as error:
            self._errors.append(error)

    def report(self) -> None:
        """Print all errors but the first, and raise that one. Raises: AccessDeniedError, PayloadError."""
        for error in self._errors[1:]:
            note(str(error))
        if self._errors:
            raise self._errors[0]


def message_record(message: Message[bytes]) -> dict[str, Json]:
    """Return a message as JSON: the payload as text if it is UTF-8, otherwise in base64 under another name."""
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
    if message.tags:
        record["tags"] = dict(message.tags)
    try:
        record["body"] = message.body.decode()
    except UnicodeDecodeError:
        record["body_base64"] = base64.b64encode(message.body).decode()
    return record


def preview(body: bytes) -> str:
    """Return the beginning of a payload, for a table cell."""
    return shortened(body[: 4 * _PREVIEW].decode(errors="backslashreplace"))


def shortened(text: str) -> str:
    """Return the beginning of a text, for a table cell."""
    return text if len(text) <= _PREVIEW else text[: _PREVIEW - 1] + "…"


def visible(text: str) -> str:
    """Return the text with control characters escaped: a payload must not control the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def when(moment: datetime | None) -> str:
    """Return a time for a table cell, in the local time zone."""
    return "" if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def age(seconds: float) -> str:
    """Return a time span for a table cell."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{max(0.0, seconds):.1f} s"


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation before data is deleted or moved.

    Raises: typer.Exit when the answer is no; typer.BadParameter when stdin is not a terminal.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        message = "confirmation needs a terminal; add --yes to proceed without it"
        raise typer.BadParameter(message)
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)


def _justify(cell: object) -> _Side:
    return "right" if isinstance(cell, int | float) else "left"
