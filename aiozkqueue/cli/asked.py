"""The queue of a command: one of ours by its name, or one of Curator or kazoo by its path.

The name is the first argument. `--curator PATH` or `--kazoo PATH` replaces it, and the later arguments move up.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    Final,
    Literal,
    ParamSpec,
    TypeVar,
    cast,
    get_args,
    get_origin,
)

import typer
from typer.models import ArgumentInfo

from aiozkqueue.cli.exits import Exit

if TYPE_CHECKING:
    import aiozkqueue as zq

P = ParamSpec("P")
ConnectionT = TypeVar("ConnectionT")

Kind = Literal["queue", "priority", "delay", "id", "simple"]

_PANEL: Final = "Queues of other programs"

CuratorPath = Annotated[
    str | None,
    typer.Option(
        metavar="PATH", help="The path of a queue of Apache Curator, in place of QUEUE.", rich_help_panel=_PANEL
    ),
]
KazooPath = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="The path of a queue of kazoo, in place of QUEUE.", rich_help_panel=_PANEL),
]
LockPath = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="The lockPath of its Curator clients, if they use one.", rich_help_panel=_PANEL),
]
CuratorKindOption = Annotated[
    Kind | None,
    typer.Option(help="Curator's recipe. [dim]\\[default: queue][/dim]", rich_help_panel=_PANEL),
]
Compressed = Annotated[
    bool, typer.Option("--compressed", help="Its Curator clients use enableCompression().", rich_help_panel=_PANEL)
]
Unlocked = Annotated[
    bool, typer.Option("--unlocked", help="The queue is kazoo's Queue, not its LockingQueue.", rich_help_panel=_PANEL)
]


@dataclass(frozen=True, slots=True)
class AskedQueue:
    """The queue that a command is for."""

    name: str
    """The name of a queue of ours, or the path of another program's queue."""
    program: Literal["curator", "kazoo"] | None = None
    lock_path: str | None = None
    kind: Kind = "queue"
    compressed: bool = False
    unlocked: bool = False

    def of(self, session: zq.QueueSession) -> zq.Queue[bytes]:
        """Return the queue. Raises: InvalidNameError, InvalidOptionError."""
        if self.program == "curator":
            return session.curator_queue(
                self.name, lock_path=self.lock_path, kind=self.kind, compressed=self.compressed
            )
        if self.program == "kazoo":
            return session.kazoo_queue(self.name, locking=not self.unlocked)
        return session.queue(self.name)


def other_programs_queue(
    curator: CuratorPath = None,
    kazoo: KazooPath = None,
    lock_path: LockPath = None,
    kind: CuratorKindOption = None,
    compressed: Compressed = False,
    unlocked: Unlocked = False,
) -> AskedQueue | None:
    """Return the queue that these options name, or None.

    Raises:
        typer.BadParameter: they name two, or belong to the other program.
    """
    if curator is not None and kazoo is not None:
        message = "--curator and --kazoo cannot be combined: give the one whose clients use the queue"
        raise typer.BadParameter(message)
    if curator is None and (lock_path is not None or kind is not None or compressed):
        message = "--lock-path, --kind and --compressed are for Curator's queues: give its path with --curator PATH"
        raise typer.BadParameter(message)
    if kazoo is None and unlocked:
        message = "--unlocked is for kazoo's queues: give its path with --kazoo PATH"
        raise typer.BadParameter(message)
    if curator is not None:
        return AskedQueue(curator, "curator", lock_path, kind or "queue", compressed)
    return None if kazoo is None else AskedQueue(kazoo, "kazoo", unlocked=unlocked)


def excludes_names(asked: AskedQueue, given: object) -> typer.BadParameter:
    """Return the error for a queue's name next to another program's queue."""
    return typer.BadParameter(
        f"{given!r} is one argument too many: --{asked.program} {asked.name} names the queue; leave out QUEUE"
    )


def asks_queue(
    command: Callable[Concatenate[ConnectionT, AskedQueue, P], Coroutine[None, None, Exit]],
) -> Callable[..., Coroutine[None, None, Exit]]:
    """Give ``async def command(connection, queue: AskedQueue, …)`` the argument QUEUE, `--curator` and `--kazoo`."""
    options = inspect.signature(other_programs_queue, eval_str=True).parameters
    first, _, *own = inspect.signature(command, eval_str=True).parameters.values()
    behind = [(parameter, argument) for parameter in own if (argument := _argument(parameter)) is not None]

    @functools.wraps(command)
    async def run(connection: ConnectionT, /, queue: str | None = None, **given: Any) -> Exit:  # noqa: ANN401 - the value that typer has read
        asked = other_programs_queue(**{name: given.pop(name) for name in options})
        if asked is None:
            if queue is None:
                message = "Missing argument 'QUEUE'. Give its name, or --curator PATH or --kazoo PATH."
                raise typer.BadParameter(message)
            asked = AskedQueue(queue)
        elif queue is not None:
            _move_up(asked, queue, [parameter for parameter, _ in behind], given)
        for parameter, argument in behind:
            if parameter.default is inspect.Parameter.empty and given[parameter.name] is None:
                message = f"Missing argument {argument.metavar!r}."
                raise typer.BadParameter(message)
        return await cast("Callable[..., Coroutine[None, None, Exit]]", command)(connection, asked, **given)

    name = inspect.Parameter(
        "queue",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[str | None, typer.Argument(metavar="QUEUE", help="The name of the queue.")],
    )
    parameters = [
        first.replace(kind=inspect.Parameter.POSITIONAL_ONLY),
        name,
        *(_optional(parameter) for parameter in own),
        *(option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in options.values()),
    ]
    vars(run)["__signature__"] = inspect.Signature(parameters)
    return run


def _argument(parameter: inspect.Parameter) -> ArgumentInfo | None:
    """Return typer's description of an argument; None for an option."""
    annotation = parameter.annotation
    if get_origin(annotation) is not Annotated:
        return None
    return next((item for item in get_args(annotation) if isinstance(item, ArgumentInfo)), None)


def _optional(parameter: inspect.Parameter) -> inspect.Parameter:
    """Make an argument optional for typer, because its text may be given where QUEUE is."""
    kind = inspect.Parameter.KEYWORD_ONLY
    if parameter.default is not inspect.Parameter.empty or _argument(parameter) is None:
        return parameter.replace(kind=kind)
    type_, *metadata = get_args(parameter.annotation)
    return parameter.replace(kind=kind, default=None, annotation=Annotated[(type_ | None, *metadata)])


def _move_up(asked: AskedQueue, text: str, behind: list[inspect.Parameter], given: dict[str, Any]) -> None:
    """Move the text given as QUEUE to the next argument, and so on."""
    for parameter in behind:
        before = given[parameter.name]
        if get_args(parameter.annotation)[0] == list[str] | None:
            given[parameter.name] = [text, *(before or ())]
            return
        given[parameter.name] = text
        if before is None:
            return
        text = before
    raise excludes_names(asked, text)
