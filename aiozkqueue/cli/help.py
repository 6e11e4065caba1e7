"""The help of a command: its own options in full; shared and rare options by their names, until `--help-all` is given.

An option with a help panel is shared or rare. Rich is imported only to draw.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console, RenderableType

_MORE: Final = "More options, explained by --help-all"
#: Placeholders of values, by their types.
_VALUES: Final = {"int": "N", "float": "N", "str": "TEXT", "file": "FILE", "datetime": "TIME"}


class Described(TyperCommand):
    """A command whose help is for users of a shell."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ANN401 - typer keeps the type private
        """Return the arguments of the usage line, without typer's braces around required ones."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401 - typer keeps the type private
        """Return the arguments and options."""
        return without_types(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002 - as above
        """Print the short help."""
        _print_short(ctx, self.get_usage(ctx), self.help or "", self.get_params(ctx))

    def format_all(self, ctx: typer.Context) -> None:
        """Print the help with every option, its variable, and the exit statuses."""
        super().format_help(ctx, ctx.make_formatter())


def without_types(parameters: list[Any]) -> list[Any]:
    """Return parameters whose help shows no Python types: `<bool>` for a switch, `<list[str]>` for an argument."""
    for parameter in parameters:
        if parameter.param_type_name == "argument" or getattr(parameter, "is_flag", False):
            vars(parameter)["display_type_rich"] = _no_type
    return parameters


def add_help_all(command: TyperCommand) -> None:
    """Give a command the option `--help-all`."""
    alone = typer.Typer(add_completion=False)
    alone.command()(_with_help_all)
    command.params.extend(cast("TyperCommand", typer.main.get_command(alone)).params)


def _show_all(ctx: typer.Context, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        cast("Described", ctx.command).format_all(ctx)
        raise typer.Exit


def _with_help_all(
    _all: Annotated[
        bool,
        typer.Option(
            "--help-all", callback=_show_all, is_eager=True, expose_value=False, help="Explain every option and exit."
        ),
    ] = False,
) -> None:
    """Have the option as typer makes it."""


def _no_type(ctx: typer.Context) -> str:  # noqa: ARG001 - as typer calls it
    return ""


def _print_short(ctx: typer.Context, usage: str, text: str, parameters: Sequence[Any]) -> None:
    from rich.console import Console  # noqa: PLC0415 - see above
    from rich.padding import Padding  # noqa: PLC0415 - see above
    from rich.text import Text  # noqa: PLC0415 - see above

    console = Console(highlight=False)
    console.print(Padding(Text(usage, style="bold"), (0, 1)))
    console.print()
    console.print(Padding(Text.from_markup(_flowing(text)), (0, 1)))
    arguments = [parameter for parameter in parameters if parameter.param_type_name == "argument"]
    options = [
        parameter
        for parameter in parameters
        if parameter.param_type_name == "option" and parameter.rich_help_panel is None
    ]
    for title, members in (("Arguments", arguments), ("Options", options)):
        if members:
            _print_panel(console, title, {_name(ctx, parameter): _explained(parameter) for parameter in members})
    more: dict[str, list[str]] = {}
    for parameter in parameters:
        if parameter not in arguments and parameter.rich_help_panel is not None:
            more.setdefault(parameter.rich_help_panel, []).append(parameter.opts[0])
    if more:
        _print_panel(console, _MORE, {panel: Text(" ".join(names)) for panel, names in more.items()})


def _flowing(text: str) -> str:
    """Return a docstring whose paragraphs, except examples, are one line each, for the width of the window."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(
        paragraph if paragraph.startswith("Example") else " ".join(paragraph.split()) for paragraph in paragraphs
    )


def _print_panel(console: Console, title: str, rows: Mapping[str, RenderableType]) -> None:
    from rich.panel import Panel  # noqa: PLC0415 - see above
    from rich.table import Column, Table  # noqa: PLC0415 - see above

    table = Table(Column(style="bold cyan", no_wrap=True), Column(ratio=1), box=None, show_header=False, expand=True)
    for name, text in rows.items():
        table.add_row(name, text)
    console.print(Panel(table, title=title, title_align="left", border_style="dim", padding=0))


def _name(ctx: typer.Context, parameter: Any) -> str:  # noqa: ANN401 - typer keeps the type private
    """Return the names of an option, or of an argument, and of its value."""
    if parameter.param_type_name == "argument":
        return str(parameter.display_name_raw)
    names = ", ".join(parameter.opts)
    negative = "".join(f", {name}" for name in parameter.secondary_opts)
    if parameter.is_flag:
        return f"{names}{negative}"
    shown = parameter.display_type(ctx).strip("<>")
    value = parameter.metavar or _VALUES.get(shown.removesuffix(" range"), shown)
    return f"{names} {value}"


def _explained(parameter: Any) -> RenderableType:  # noqa: ANN401 - as above
    """Return the text of an option, with its default."""
    from rich.text import Text  # noqa: PLC0415 - see above

    text = Text.from_markup(parameter.help or "")
    if parameter.required and parameter.param_type_name == "option":
        text.append(" [required]", style="red")
    elif parameter.show_default and parameter.default not in (None, False, ""):
        text.append(f" [default: {parameter.default}]", style="dim")
    return text
