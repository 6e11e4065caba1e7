"""The screen of `aiozkqueue top`: a header, the queues in the chosen order, and the keys. No I/O."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from rich import box
from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from aiozkqueue.cli import output
from aiozkqueue.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rich.console import Console, ConsoleOptions, RenderResult

    from aiozkqueue.cli.output import Json

    Row = Mapping[str, Json]

#: The least width of a window, in columns, for the columns `_IN_WIDE` and a sparkline.
_WIDE: Final = 110
#: Columns of wide windows: retrying messages are delayed messages too.
_IN_WIDE: Final = frozenset({"retrying"})
#: Values from which a narrow table omits decimals.
_SHORT: Final = 100
#: The least width of a queue's name.
_NAME: Final = 6
#: How many rates a sparkline shows.
_SPARKS: Final = 12
_BARS: Final = "▁▂▃▄▅▆▇█"
_ESCAPE, _BACKSPACES = "\x1b", "\x7f\b"
#: The order of the rows by column; figures come largest first.
_SORTS: Final = ("queue", "size", "waiting", "in_rate", "oldest_age", "dead_letters")
_TITLES: Final = {
    "size": "size",
    "waiting": "waiting",
    "in_flight": "in flight",
    "delayed": "delayed",
    "retrying": "retrying",
    "in_rate": "in/s",
    "out_rate": "out/s",
    "oldest_age": "oldest",
    "dead_letters": "dead letters",
    "consumers": "consumers",
}


class _Cell(NamedTuple):
    text: str
    style: str = ""


class Screen:
    """The state of the view: rows, order, filter, and whether it is on hold."""

    def __init__(self, header: str, quit: Callable[[], None], changed: Callable[[], None]) -> None:
        self.header = header
        self.held: bool = False
        """Whether the figures stay as they are."""
        self._quit = quit
        self._changed = changed
        self._sort = 0
        self._filter = ""
        self._typing = False
        self._rows: Sequence[Row] = ()
        self._rates: dict[str, deque[float]] = {}
        self._clock = ""

    # -- keys

    def press(self, key: str) -> None:
        """Handle a key."""
        if self._typing:
            self._type(key)
        elif key == "q":
            self._quit()
        elif key == "s":
            self._sort = (self._sort + 1) % len(_SORTS)
        elif key in " p":
            self.held = not self.held
        elif key == "/":
            self._typing, self._filter = True, ""
        self._changed()

    def _type(self, key: str) -> None:
        if key in "\r\n":
            self._typing = False
        elif key == _ESCAPE:
            self._typing, self._filter = False, ""
        elif key in _BACKSPACES:
            self._filter = self._filter[:-1]
        elif key.isprintable():
            self._filter += key

    # -- figures

    def show(self, rows: Sequence[Row], clock: str) -> None:
        """Replace the figures."""
        self._rows, self._clock = rows, clock
        for row in rows:
            rates = self._rates.setdefault(str(row["queue"]), deque(maxlen=_SPARKS))
            if isinstance(rate := row.get("out_rate"), int | float):
                rates.append(float(rate))

    def render(self) -> Group:
        """Return the contents of the terminal."""
        shown = self._chosen()
        hidden = len(self._rows) - len(shown)
        totals = [f"{title} {sum(_number(row, name) for row in shown):g}" for name, title in _TOTALS]
        count = counted(len(shown), "queue") + (f" ({hidden} hidden by the filter)" if hidden else "")
        head = Text(f"{self.header}   {self._clock}{'   on hold' if self.held else ''}", style="bold")
        return Group(head, Text("   ".join([count, *totals])), Figures(shown, self._rates), self._help())

    def _chosen(self) -> list[Row]:
        wanted = self._filter.casefold()
        rows = [row for row in self._rows if wanted in str(row["queue"]).casefold()]
        by = _SORTS[self._sort]
        if by == "queue":
            return sorted(rows, key=lambda row: str(row["queue"]))
        return sorted(rows, key=lambda row: _number(row, by), reverse=True)

    def _help(self) -> Text:
        if self._typing:
            return Text(f"filter: {output.visible(self._filter)}▏  Enter: keep it   Esc: show all")
        kept = f" {output.visible(self._filter)!r}" if self._filter else ""
        by = _TITLES.get(_SORTS[self._sort], "name")
        return Text(f"q: quit   s: sort (by {by})   /: filter{kept}   p: hold", style="dim")


_TOTALS: Final = (("size", "size"), ("in_flight", "in flight"), ("in_rate", "in/s"), ("out_rate", "out/s"))


class Figures:
    """A table of queues that fits the window; lines below it name queues that cannot be read.

    With earlier rates, a wide table has a sparkline of the messages out.
    """

    def __init__(self, rows: Sequence[Row], rates: Mapping[str, Sequence[float]] | None = None) -> None:
        self._rows = [row for row in rows if "unreadable" not in row]
        self._unreadable = {str(row["queue"]): str(row["unreadable"]) for row in rows if "unreadable" in row}
        self._rates = rates

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the table, as rich calls it."""
        wide = options.max_width >= _WIDE
        titles = {name: title for name, title in _TITLES.items() if wide or name not in _IN_WIDE}
        figures = [_cells(row, titles, exact=wide) for row in self._rows]
        columns = [
            Column(title, min_width=max([*map(len, title.split()), *(len(row[index].text) for row in figures)]))
            for index, title in enumerate(titles.values())
        ]
        rates = self._rates if wide else None
        sparks = [] if rates is None else [Column("out", no_wrap=True)]
        table = Table(
            Column("queue", overflow="fold", min_width=_NAME),
            *columns,
            *sparks,
            box=box.SIMPLE_HEAD,
            padding=0,
            show_edge=False,
        )
        for row, shown in zip(self._rows, figures, strict=True):
            name = Text(output.visible(str(row["queue"])))
            if row["paused"]:
                name.append(" (paused)", style="yellow")
            if row["incomplete"]:
                name.append(" (in part)")
            cells = [Text(cell.text, justify="right", style=cell.style) for cell in shown]
            if rates is not None:
                cells.append(Text(sparkline(rates.get(str(row["queue"]), ()))))
            table.add_row(name, *cells, style="dim" if _is_idle(row) else "")
        yield table
        for queue, why in self._unreadable.items():
            yield Text(output.visible(f"{queue}: {why}"), style="red")


def _cells(row: Row, names: Iterable[str], *, exact: bool) -> list[_Cell]:
    """Return these figures of a row: red for dead letters, and for messages that no consumer takes."""
    cells = {name: _Cell("" if (value := row[name]) is None else _figure(value, exact=exact)) for name in _TITLES}
    age = row["oldest_age"]
    cells["oldest_age"] = _Cell(output.age(age) if isinstance(age, float) else "")
    if row["dead_letters"]:
        cells["dead_letters"] = cells["dead_letters"]._replace(style="red")
    if row["waiting"] and not row["consumers"] and not row["paused"]:
        cells["consumers"] = cells["consumers"]._replace(style="bold red")
    return [cells[name] for name in names]


def _figure(value: Json, *, exact: bool) -> str:
    """Return a figure; unless it is to be exact, in at most five characters."""
    if exact or not isinstance(value, int | float):
        return str(value)
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if value >= 100 * size or (unit == "M" and value >= size):
            return f"{value / size:.{0 if value >= 100 * size else 1}f}{unit}"
    return f"{value:.0f}" if value >= _SHORT else str(value)


def _is_idle(row: Row) -> bool:
    return not any(row[name] for name in ("size", "in_rate", "out_rate", "dead_letters", "paused"))


def sparkline(values: Sequence[float]) -> str:
    """Return values as bars of eight heights, the largest value as the highest."""
    most = max(values, default=0)
    return "".join(_BARS[round(value / most * (len(_BARS) - 1)) if most else 0] for value in values)


def _number(row: Row, name: str) -> float:
    value = row.get(name)
    return float(value) if isinstance(value, int | float) else 0.0
