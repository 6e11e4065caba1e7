"""The tables of the commands' arguments and options, made from the commands themselves."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import typer

from aiozkqueue.cli.commands import COMMANDS
from aiozkqueue.cli.lazy import Command, Commands, imported

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from typer.core import TyperArgument, TyperCommand, TyperOption

#: The place of the tables in the page.
MARK: Final = "<!-- command tables -->"
#: The panels of options that many commands share, each with the heading and the text of its own section.
SHARED: Final = {
    "Connection": ("Connection options", "Every command that opens a session has these options."),
    "Queues of other programs": (
        "Options for queues of other programs",
        "They replace the argument QUEUE. `move` has them twice, with the prefixes `--from-` and `--to-`.",
    ),
}
_STYLE: Final = re.compile(r"\[/?(?:dim|bold|italic)\]")
_DEFAULT: Final = re.compile(r"\s*\[dim\]\\\[default: (.+?)\]\[/dim\]")
_VARIABLE: Final = re.compile(r"\s*\[dim\]\\\[env var: \w+\]\[/dim\]")


class Named(NamedTuple):
    """A command with its full name and the panel that lists it."""

    name: str
    command: Command
    panel: str | None


def commands() -> Iterator[Named]:
    """Yield the visible commands."""
    for one in COMMANDS:
        if isinstance(one, Commands):
            yield from (Named(f"{one.name} {member.name}", member, one.panel) for member in one.members)
        elif not one.hidden:
            yield Named(one.name, one, one.panel)


def parameters(command: TyperCommand) -> list[TyperArgument | TyperOption]:
    """Return the arguments and options of a command except ``--help``."""
    shown = [one for one in command.params if one.name != "help" and not getattr(one, "hidden", False)]
    return cast("list[TyperArgument | TyperOption]", shown)


def tables() -> str:
    """Return a section for each command, and one for the options that commands share."""
    parts: list[str] = []
    shared: dict[str, dict[str, str]] = {panel: {} for panel in SHARED}
    found = list(commands())
    for panel in dict.fromkeys(one.panel for one in found):
        parts.append(f"## {panel}")
        for one in (one for one in found if one.panel == panel):
            parts += _section(one, shared)
    for panel, (heading, text) in SHARED.items():
        parts += [f"## {heading}", text, _table(shared[panel].values())]
    return "\n\n".join(parts)


def _section(one: Named, shared: dict[str, dict[str, str]]) -> Iterator[str]:
    yield f"### aiozkqueue {one.name}"
    yield one.command.summary
    command = imported(one.command)
    rows: list[str] = []
    for parameter in parameters(command):
        row = _row(parameter, command)
        if parameter.rich_help_panel in SHARED:
            shared[parameter.rich_help_panel].setdefault(str(parameter.name), row)
        else:
            rows.append(row)
    if rows:
        yield _table(rows)


def _table(rows: Iterable[str]) -> str:
    return "\n".join(["| name | value | default | meaning |", "|---|---|---|---|", *rows])


def _row(one: TyperArgument | TyperOption, command: TyperCommand) -> str:
    names, value, default = _names(one), "", ""
    text = one.help or ""
    if one.param_type_name == "option" and not getattr(one, "is_flag", False):
        value = one.metavar or one.display_type(typer.Context(command)).strip("<>").removesuffix(" range")
        value = value if one.metavar or "|" in value else {"str": "TEXT"}.get(value, value.upper())
        default = f"{one.default:g}" if isinstance(one.default, float) else str(one.default or "")
    if given := _DEFAULT.search(text):
        default = given[1]
    if one.required:
        default = "required"
    text = _STYLE.sub("", _VARIABLE.sub("", _DEFAULT.sub("", text))).strip()
    if isinstance(one.envvar, str):
        text = f"{text} Variable: `{one.envvar}`."
    shown = (names, f"`{value}`" if value else "", default, text)
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|").replace("<", "&lt;") for cell in shown) + " |"


def _names(one: TyperArgument | TyperOption) -> str:
    if one.param_type_name == "option":
        return ", ".join(f"`{name}`" for name in (*one.opts, *one.secondary_opts))
    return f"`{one.metavar or str(one.name).upper()}`"
