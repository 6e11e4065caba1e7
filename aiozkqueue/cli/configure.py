"""`aiozkqueue configure`: show and change the configuration of a queue."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple

import typer

import aiozkqueue as zq
from aiozkqueue.cli import output
from aiozkqueue.cli.arguments import AsJson, QueueName
from aiozkqueue.cli.connection import Connection, connected
from aiozkqueue.cli.exits import CommandFailedError, Exit
from aiozkqueue.cli.times import TIME, parse_duration
from aiozkqueue.layout import IN_FORCE, is_default
from aiozkqueue.operations.settings_text import kind_of, policy_settings, setting_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozkqueue.cli.output import Json

Exhausted = Literal["dead-letter", "drop"]
Affinity = Literal["producer", "any"]


class Setting(NamedTuple):
    """A field of `QueueConfig` as an option: ``--max-size`` for ``max_size``; a bool is ``--name/--no-name``."""

    field: str
    type: object
    help: str
    read: Callable[[str], object] | None = None
    """Parses the value of the field, if it is not just a number or a name."""
    metavar: str | None = None
    panel: str | None = None


def _history(text: str) -> zq.History | Literal[False]:
    if text == "no":
        return False
    match = _HISTORY.fullmatch(text)
    if match is None:
        message = f"{text!r}: give a time, such as 7d or 7d,most=1000,payload; or no"
        raise typer.BadParameter(message)
    lifetime, most, payload = match.groups()
    return zq.History(lifetime=parse_duration(lifetime), most=int(most or 100_000), payload=payload is not None)


def _backoff(text: str) -> zq.Backoff:
    try:
        if ".." in text:
            initial, _, maximum = text.partition("..")
            return zq.Exponential(parse_duration(initial), maximum=parse_duration(maximum))
        delays = [parse_duration(part) for part in text.split(",")]
        return zq.Fixed(delays[0]) if len(delays) == 1 else zq.Schedule(delays)
    except (typer.BadParameter, zq.InvalidOptionError) as error:
        message = f"{text!r}: give 5, or 1,5,1m, or 1..1h ({error})"
        raise typer.BadParameter(message) from error


_HISTORY: Final = re.compile(r"([^,]+)(?:,most=([0-9]{1,9}))?(,payload)?")

_STICKY: Final = "Sticky queues"

#: Every setting except the policy, which has several options. A new field of `QueueConfig` needs one line here.
SETTINGS: Final = (
    Setting("shards", int, "The number of folders for new messages."),
    Setting("bundle", int, "Messages in one znode, up to 64."),
    Setting("max_size", int, "The maximum number of messages; 0: no limit."),
    Setting("ordered", bool, "Deliver messages one at a time, in order."),
    Setting("paused", bool, "Stop or resume deliveries."),
    Setting("collapse", bool, "Deliver only the newest message of each key."),
    Setting("ttl", float, "The lifetime of a message; inf: no limit.", parse_duration, TIME),
    Setting("affinity", Affinity, "producer: only the node that put a message takes it.", panel=_STICKY),
    Setting(
        "reap_after", float, "The time after which other nodes may take such a message.", parse_duration, TIME, _STICKY
    ),
    Setting("reap_every", float, "The interval between two checks for such messages.", parse_duration, TIME, _STICKY),
    Setting("reap_limit", int, "The maximum number of messages that one check releases.", panel=_STICKY),
    Setting("expired", Exhausted, "What happens to an expired message."),
    Setting(
        "history",
        zq.History,
        "How long to keep records of ended messages: 7d; 7d,most=1000,payload; no (none).",
        _history,
        "TIME…",
    ),
    Setting("clean_every", float, "The interval between two clean-ups.", parse_duration, TIME),
)


async def configure(
    connection: Connection,
    /,
    queue: QueueName,
    policy: Annotated[
        str | None,
        typer.Option(metavar="POLICY", help="at-least-once, consume-once, consume-times=N."),
    ] = None,
    backoff: Annotated[
        zq.Backoff | None,
        typer.Option(
            parser=_backoff,
            metavar="TIME…",
            help="Before the next attempt: 5; 1,5,1m; 1..1h (doubled).",
        ),
    ] = None,
    exhausted: Annotated[Exhausted | None, typer.Option(help="What happens after the last attempt.")] = None,
    create: Annotated[bool, typer.Option("--create", help="Create the queue if it does not exist.")] = False,
    as_json: AsJson = False,
    **settings: object,
) -> Exit:
    """Show the configuration of a queue, after changing the given options.

    Every client follows a change from its next put or claim on. Exit status 1: the queue does not exist.

    Examples:
    [dim]$ aiozkqueue configure orders --create --shards 4[/dim]
    [dim]$ aiozkqueue configure orders --policy consume-times=5 --backoff 1..60
    $ aiozkqueue configure orders --max-size 10000 --history 7d,most=1000,payload[/dim]
    """
    async with connection.open() as session:
        target = session.queue(queue)
        changed = {name: value for name, value in settings.items() if value is not None}
        new = create and not await target.exists()
        if new:
            await connection.note_new(session, queue)
        else:
            await _existing(connection, session, queue)
        if policy is not None or backoff is not None or exhausted is not None:
            now = (None if new else (await target.configuration()).policy) or zq.AtLeastOnce()
            changed["policy"] = _policy(now, policy, backoff, exhausted)
        if changed or new:
            await target.configure(zq.QueueConfig(**changed))  # type: ignore[arg-type]  # checked by its own hand
        config = await target.configuration()
    record: dict[str, Json] = {"queue": queue, **policy_settings(config.policy)}
    record |= {setting.field: setting_text(getattr(config, setting.field)) for setting in SETTINGS}
    if as_json:
        output.print_json(record)
    else:
        assumed = policy_settings(zq.AtLeastOnce()) if config.policy is None else {}
        rows = [_row(name, value, assumed=name in assumed) for name, value in (record | assumed).items()]
        output.print_table(["setting", "value", ""], rows)
    return Exit.OK


async def _existing(connection: Connection, session: zq.QueueSession, queue: str) -> None:
    """Raises: CommandFailedError: the queue does not exist."""
    try:
        await connection.existing(session, queue)
    except CommandFailedError as absent:
        message = f"{absent}, and so does --create"
        raise CommandFailedError(message if str(absent).endswith("creates it") else str(absent)) from absent


def _row(name: str, value: Json, *, assumed: bool) -> tuple[str, Json, str]:
    """Return a row of the table: a setting, the value in force, and whether that is the default.

    ``assumed``: the queue stores no such setting, and this is what its clients assume.
    """
    default = "default" if assumed or (name in IN_FORCE and is_default(name, value)) else ""
    if value is None:
        return name, IN_FORCE.get(name, "-"), default
    return name, {True: "yes", False: "no"}[value] if isinstance(value, bool) else value, default


def _options() -> list[inspect.Parameter]:
    """Return the settings as parameters for typer."""
    return [
        inspect.Parameter(
            setting.field,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                setting.type | None,  # type: ignore[operator]
                typer.Option(
                    help=setting.help, parser=setting.read, metavar=setting.metavar, rich_help_panel=setting.panel
                ),
            ],
        )
        for setting in SETTINGS
    ]


def _with_settings() -> inspect.Signature:
    own = inspect.signature(configure, eval_str=True).parameters.values()
    return inspect.Signature(
        [parameter for parameter in own if parameter.kind is not inspect.Parameter.VAR_KEYWORD] + _options()
    )


vars(configure)["__signature__"] = _with_settings()
command: Final = connected(configure)


def _policy(now: zq.Policy, policy: str | None, backoff: zq.Backoff | None, exhausted: Exhausted | None) -> zq.Policy:
    """Change the given settings of a policy, and keep the others if the new kind has them."""
    rest = zq.Exponential() if isinstance(now, zq.ConsumeOnce) else now.backoff
    rest = backoff or rest
    end = exhausted or now.exhausted
    kind, _, times = (policy or kind_of(now)).partition("=")
    if kind == "consume-times" and times.isdigit():
        return zq.ConsumeTimes(int(times), backoff=rest, exhausted=end)
    if kind == "consume-once" and not times and backoff is None:
        return zq.ConsumeOnce(exhausted=end)
    if kind == "at-least-once" and not times and exhausted is None:
        return zq.AtLeastOnce(backoff=rest)
    given = f"--policy {policy}" if policy else f"the queue's policy is {kind_of(now)}"
    message = (
        f"{given}: give at-least-once (with --backoff), consume-once (with --exhausted) or consume-times=N (with both)"
    )
    raise typer.BadParameter(message)
