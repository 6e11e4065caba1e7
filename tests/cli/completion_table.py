"""The table of commands and options that shells complete, made from the command line itself.

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
    """Return the whole command line; ``shared`` has the options that several commands have, by name."""
    commands: dict[str, Any] = {}
    for entry in COMMANDS:
        if isinstance(entry, Command):
            if not entry.hidden:
                commands[entry.name] = described(entry, {})
        else:
            kinds = {"NAME": "job"} if entry.name == "jobs" else {}
            members = {member.name: described(member, kinds) for member in entry.members}
            commands[entry.name] = {"help": entry.summary, "options": [HELP], "commands": members}
    leaves = [command for group in commands.values() for command in group.get("commands", {"": group}).values()]
    uses = Counter(json.dumps(option) for command in leaves for option in command["options"])
    shared: dict[str, Any] = {}
    for text, times in uses.most_common():
        option = json.loads(text)
        if times > 1:
            shared.setdefault(option["names"][0], option)
    for command in leaves:
        own = [option for option in command["options"] if option != shared.get(option["names"][0])]
        command["options"] = [*own, *(option["names"][0] for option in command["options"] if option not in own)]
    return {"shared": shared, "options": parameters(whole, "option", {}), "commands": commands}


def described(command: Command, kinds: dict[str, str]) -> dict[str, Any]:
    """Return the entry of a command."""
    made = imported(command)
    return {
        "help": command.summary,
        "arguments": [
            {"values": argument["values"], "many": argument["many"]}
            for argument in parameters(made, "argument", STORED | kinds)
        ],
        "options": parameters(made, "option", STORED),
    }


def parameters(command: Any, type_: str, kinds: dict[str, str]) -> list[dict[str, Any]]:
    """Return the arguments or the options of a command."""
    context = typer.Context(command)
    return [
        {
            "names": [*parameter.opts, *parameter.secondary_opts],
            "help": str(Text.from_markup(parameter.help or "")),
            "values": values(parameter, kinds),
            "many": parameter.nargs == -1 or getattr(parameter, "multiple", False),
        }
        for parameter in command.get_params(context)
        if parameter.param_type_name == type_ and not parameter.hidden
    ]


def values(parameter: Any, kinds: dict[str, str]) -> str | list[str] | None:
    """Return the values of a parameter, or their kind; None for a switch."""
    if getattr(parameter, "is_flag", False):
        return None
    choices = parameter.type_descriptor.choices
    if choices:
        return [str(getattr(choice, "value", choice)) for choice in choices]
    return kinds.get(parameter.metavar or "", "")


HELP = {"names": ["--help"], "help": "Show this message and exit.", "values": None, "many": False}


def text_of(value: Any, indent: str = "\n") -> str:
    """Return JSON with a line for each option, so that changes are easy to read."""
    if not isinstance(value, dict) or "values" in value:
        if isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
            lines = [text_of(entry) for entry in value if isinstance(entry, dict)]
            if names := [entry for entry in value if isinstance(entry, str)]:
                lines.append(json.dumps(names)[1:-1])
            inner = indent + " "
            return f"[{inner}{f',{inner}'.join(lines)}{indent}]"
        return json.dumps(value, ensure_ascii=False)
    inner = indent + " "
    members = f",{inner}".join(f"{json.dumps(name)}: {text_of(member, inner)}" for name, member in value.items())
    return f"{{{inner}{members}{indent}}}"


if __name__ == "__main__":
    TABLE.write_text(text_of(table()) + "\n", encoding="utf-8")
