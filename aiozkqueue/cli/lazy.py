"""Commands that are imported when they are run, so that no command waits for the imports of another.

Help and completion need only the names and summaries of the commands. A table (`commands`) has them. The docstring of a
command's function is its own help.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, cast

import typer
from typer.core import TyperCommand, TyperGroup

from aiozkqueue.cli.exits import EXPLAINED
from aiozkqueue.cli.help import Described, add_help_all, without_types

_MARKUP: Final = "rich"


@dataclass(frozen=True, slots=True)
class Command:
    """One command: its name, the ``module:function`` under `aiozkqueue.cli`, its summary and its panel."""

    name: str
    source: str
    summary: str
    panel: str | None = None
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Commands:
    """A group of commands under one name."""

    name: str
    summary: str
    members: Sequence[Command]
    panel: str | None = None


class LazyGroup(TyperGroup):
    """A group that lists the outlines of its commands and imports a command to run it."""

    def extend(self, members: Sequence[Command | Commands]) -> None:
        """Add commands, in the order of their listing."""
        for member in members:
            if isinstance(member, Command):
                self.add_command(_Outline(member))
            else:
                group = LazyGroup(
                    name=member.name,
                    help=member.summary,
                    epilog=EXPLAINED,
                    rich_markup_mode=_MARKUP,
                    rich_help_panel=member.panel,
                )
                group.extend(member.members)
                self.add_command(group)

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401 - typer keeps the type private
        """Return the options."""
        return without_types(super().get_params(ctx))

    # The base class uses a private type of typer here.
    def resolve_command(  # type: ignore[override]
        self, ctx: typer.Context, args: list[str]
    ) -> tuple[str | None, TyperCommand | TyperGroup | None, list[str]]:
        """Return the command that the arguments begin with."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, imported(found.command) if isinstance(found, _Outline) else cast("TyperGroup | None", found), rest


class _Outline(TyperCommand):
    """The name and summary of a command that is not imported yet."""

    def __init__(self, command: Command) -> None:
        super().__init__(
            name=command.name,
            help=command.summary,
            hidden=command.hidden,
            rich_markup_mode=_MARKUP,
            rich_help_panel=command.panel,
        )
        self.command = command


def imported(command: Command) -> TyperCommand:
    """Return the command itself."""
    module, _, function = command.source.partition(":")
    alone = typer.Typer(rich_markup_mode=_MARKUP, pretty_exceptions_enable=False, add_completion=False)
    alone.command(command.name, cls=Described, epilog=None if command.hidden else EXPLAINED, hidden=command.hidden)(
        getattr(import_module(f"aiozkqueue.cli.{module}"), function)
    )
    typer_command = cast("TyperCommand", typer.main.get_command(alone))
    add_help_all(typer_command)
    return typer_command
