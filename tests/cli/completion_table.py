"""The commands and options that shells complete, from the command line itself.

``python -m tests.cli.completion_table`` writes them to `aiozkqueue_completion`.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import typer
from rich.text import Text

import aiozkqueue_completion
from aiozkqueue.cli.app import command as whole
from aiozkqueue.cli.commands import COMMANDS
from aiozkqueue.cli.lazy import Command, imported

TABLE = Path(aiozkqueue_completion.__file__).parent / "commands.json"
#: The kinds of stored names, by the placeholder in the help.
STORED = {"QUEUE": "queue", "FROM": "queue", "TO": "queue", "BUS": "bus"}


def table() -> dict[str, Any]:
    """Return the whole command line; ``shared`` has the options that several commands share, by their names."""
    commands: dict[str, Any] = {}
    for one in COMMANDS:
        if isinstance(one, Command):
            if not one.hidden:
                commands[one.name] = described(one, {})
        else:
            kinds = {"NAME": "job"} if one.name == "jobs" else {}
            members = {member.name: described(member, kinds) for member in one.members}
            commands[one.name] = {"help": one.summary, "options": [HELP], "commands": members}
    leaves = [one for group in commands.values() for one in group.get("commands", {"": group}).values()]
    uses = Counter(json.dumps(option) for one in leaves for option in one["options"])
    shared: dict[str, Any] = {}
    for text, times in uses.most_common():
        option = json.loads(text)
        if times > 1:
            shared.setdefault(option["names"][0], option)
    for one in leaves:
        own = [option for option in one["options"] if option != shared.get(option["names"][0])]
        one["options"] = [*own, *(option["names"][0] for option in one["options"] if option not in own)]
    return {"shared": shared, "options": parameters(whole, "option", {}), "commands": commands}


def described(command: Command, kinds: dict[str, str]) -> dict[str, Any]:
    """Return a command of the table."""
    made = imported(command)
    return {
        "help": command.summary,
        "arguments": [
            {"values": one["values"], "many": one["many"]} for one in parameters(made, "argument", STORED | kinds)
        ],
        "options": parameters(made, "option", STORED),
    }


def parameters(command: Any, type_: str, kinds: dict[str, str]) -> list[dict[str, Any]]:
    """Return the arguments or the options of a command."""
    context = typer.Context(command)
    return [
        {
            "names": [*one.opts, *one.secondary_opts],
            "help": str(Text.from_markup(one.help or "")),
            "values": values(one, kinds),
            "many": one.nargs == -1 or getattr(one, "multiple", False),
        }
        for one in command.get_params(context)
        if one.param_type_name == type_ and not one.hidden
    ]


def values(parameter: Any, kinds: dict[str, str]) -> str | list[str] | None:
    """Return the values of a parameter: all of them, or their kind; None for a switch."""
    if getattr(parameter, "is_flag", False):
        return None
    choices = parameter.type_descriptor.choices
    if choices:
        return [str(getattr(one, "value", one)) for one in choices]
    return kinds.get(parameter.metavar or "", "")


HELP = {"names": ["--help"], "help": "Show this message and exit.", "values": None, "many": False}


def text_of(value: Any, indent: str = "\n") -> str:
    """Return JSON with a line for each option, so that changes are easy to read."""
    if not isinstance(value, dict) or "values" in value:
        if isinstance(value, list) and any(isinstance(one, dict) for one in value):
            lines = [text_of(one) for one in value if isinstance(one, dict)]
            if names := [one for one in value if isinstance(one, str)]:
                lines.append(json.dumps(names)[1:-1])
            inner = indent + " "
            return f"[{inner}{f',{inner}'.join(lines)}{indent}]"
        return json.dumps(value, ensure_ascii=False)
    inner = indent + " "
    members = f",{inner}".join(f"{json.dumps(name)}: {text_of(one, inner)}" for name, one in value.items())
    return f"{{{inner}{members}{indent}}}"


if __name__ == "__main__":
    TABLE.write_text(text_of(table()) + "\n", encoding="utf-8")
