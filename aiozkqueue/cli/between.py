"""The source and target queue of a command: our queues by name, another program's by path.

The names are the first two arguments. `--from-curator PATH` or `--from-kazoo PATH` replaces the first of them, and
`--to-curator PATH` or `--to-kazoo PATH` the second.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, Final, ParamSpec, cast, get_args

import typer
from typer.models import OptionInfo

from aiozkqueue.cli.asked import AskedQueue, other_programs_queue

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from aiozkqueue.cli.connection import Connection
    from aiozkqueue.cli.exits import Exit

P = ParamSpec("P")

#: The arguments, by the word that their options begin with.
_ENDS: Final = {"from": "FROM", "to": "TO"}
_HELP: Final = ("The queue to move messages from.", "The queue to move them to.")


def asks_both_queues(
    command: Callable[Concatenate[Connection, AskedQueue, AskedQueue, P], Coroutine[None, None, Exit]],
) -> Callable[..., Coroutine[None, None, Exit]]:
    """Give ``async def command(connection, source, target, …)`` the arguments FROM and TO, and options for paths."""
    shared = inspect.signature(other_programs_queue, eval_str=True).parameters
    first, _, _, *own = inspect.signature(command, eval_str=True).parameters.values()

    @functools.wraps(command)
    async def run(
        connection: Connection,
        /,
        source: str | None = None,
        target: str | None = None,
        **given: Any,  # noqa: ANN401 - the value that typer has read
    ) -> Exit:
        foreign = [_asked(end, {name: given.pop(f"{end}_{name}") for name in shared}) for end in _ENDS]
        names = [name for name in (source, target) if name is not None]
        asked: list[AskedQueue] = []
        for argument, other in zip(_ENDS.values(), foreign, strict=True):
            if other is None and not names:
                end = argument.lower()
                message = (
                    f"Missing argument {argument!r}. Give its name, or --{end}-curator PATH or --{end}-kazoo PATH."
                )
                raise typer.BadParameter(message)
            asked.append(AskedQueue(names.pop(0)) if other is None else other)
        if names:
            message = f"unexpected argument {names[0]!r}: options already name {' and '.join(_named(foreign))}"
            raise typer.BadParameter(message)
        return await cast("Callable[..., Coroutine[None, None, Exit]]", command)(connection, *asked, **given)

    arguments = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[str | None, typer.Argument(metavar=metavar, help=text)],
        )
        for name, metavar, text in zip(("source", "target"), _ENDS.values(), _HELP, strict=True)
    ]
    parameters = [
        first.replace(kind=inspect.Parameter.POSITIONAL_ONLY),
        *arguments,
        *(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own),
        *(_option(end, parameter) for end in _ENDS for parameter in shared.values()),
    ]
    vars(run)["__signature__"] = inspect.Signature(parameters)
    return run


def _named(foreign: list[AskedQueue | None]) -> list[str]:
    return [argument for argument, other in zip(_ENDS.values(), foreign, strict=True) if other is not None]


def _asked(end: str, given: dict[str, Any]) -> AskedQueue | None:
    """Return the queue that the options of one end name. Raises: typer.BadParameter."""
    try:
        return other_programs_queue(**given)
    except typer.BadParameter as error:
        raise typer.BadParameter(error.message.replace("--", f"--{end}-")) from None


def _option(end: str, parameter: inspect.Parameter) -> inspect.Parameter:
    """Return an option of another program's queue as one of this end."""
    type_, *metadata = get_args(parameter.annotation)
    (option,) = (item for item in metadata if isinstance(item, OptionInfo))
    end_option = typer.Option(
        f"--{end}-{parameter.name.replace('_', '-')}",
        metavar=option.metavar,
        help=(option.help or "").replace("QUEUE", _ENDS[end]),
        rich_help_panel=f"{_ENDS[end]}, a queue of another program",
    )
    return parameter.replace(
        name=f"{end}_{parameter.name}", kind=inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[(type_, end_option)]
    )
