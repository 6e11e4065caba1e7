"""The words that may follow on a command line: commands, options, their values, and names from ZooKeeper."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TABLE: Final = Path(__file__).parent / "commands.json"
#: The options of a connection that are also environment variables.
_VARIABLES: Final = {
    f"--{name}": f"AIOZKQUEUE_{name.upper().replace('-', '_')}"
    for name in ("hosts", "root", "tls-ca", "tls-cert", "tls-key", "tls", "auth", "auth-file")
}
_CREDENTIALS: Final = frozenset({"--auth", "--auth-file"})
_NO: Final = frozenset({"0", "f", "false", "n", "no", "off"})
#: Kinds of names that `servers` reads.
_STORED: Final = frozenset({"queue", "job", "bus"})


@dataclass(slots=True)
class _Line:
    """The words before the one to complete, as a command reads them."""

    command: dict[str, Any]
    """The command, or the group of commands, from the table."""
    open: dict[str, Any] | None = None
    """The option whose value comes next."""
    arguments: list[str] = field(default_factory=list[str])
    given: dict[str, str] = field(default_factory=dict[str, str])
    """The options, by their long names, with their values."""
    only_arguments: bool = False
    """Whether ``--`` has ended the options."""


def candidates(before: Sequence[str], begun: str, environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the words that may stand after these and begin so, each with its help."""
    line = _read(before)
    if line is None:
        return []
    options = {name: environment[variable] for name, variable in _VARIABLES.items() if environment.get(variable)}
    if options.get("--tls", "").lower() in _NO:
        del options["--tls"]
    if not line.given.keys().isdisjoint(_CREDENTIALS):  # they replace the variables
        options = {name: value for name, value in options.items() if name not in _CREDENTIALS}
    options |= line.given
    if line.open is not None:
        return _values(line.open["values"], begun, options)
    if begun.startswith("-") and not line.only_arguments:
        return _options(line, begun, options)
    if "commands" in line.command:
        members = line.command["commands"].items()
        return [(name, one["help"]) for name, one in members if name.startswith(begun)]
    return _arguments(line, begun, options)


def _read(words: Sequence[str]) -> _Line | None:
    """Return the line of these words; None if there is no such command."""
    table = json.loads(_TABLE.read_bytes())
    line = _Line(table)
    for word in words:
        if line.open is not None:
            if word != "=":  # bash makes it a word
                name = line.open["names"][0]
                before = line.given.get(name)
                line.given[name] = word if before is None or not line.open["many"] else f"{before}\n{word}"
                line.open = None
        elif word == "--" and not line.only_arguments:
            line.only_arguments = True
        elif word.startswith("-") and word != "-" and not line.only_arguments:
            name, equals, value = word.partition("=")
            option = _option(line.command, name)
            if option and option["values"] is not None and not equals:
                line.open = option
            elif option:
                line.given[option["names"][0]] = value
        elif "commands" in line.command:
            if word not in line.command["commands"]:
                return None
            line.command = dict(line.command["commands"][word])
            options = line.command["options"]
            line.command["options"] = [table["shared"][one] if isinstance(one, str) else one for one in options]
        else:
            line.arguments.append(word)
    return line


def _option(command: dict[str, Any], name: str) -> dict[str, Any]:
    """Return an option from the table; an empty one if there is none."""
    for one in command["options"]:
        if name in one["names"]:
            return dict(one)
    return {}


def _options(line: _Line, begun: str, options: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the names of the options that may still be given, or the values of one after its equals sign."""
    name, equals, value = begun.partition("=")
    if equals:
        found = _values(_option(line.command, name).get("values"), value, options)
        return [(f"{name}={word}", text) for word, text in found]
    return [
        (name, one["help"])
        for one in line.command["options"]
        if one["many"] or one["names"][0] not in line.given
        for name in one["names"]
        if name.startswith("--") and name.startswith(begun)
    ]


def _arguments(line: _Line, begun: str, options: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the values of the next argument; a command takes each of several names once."""
    arguments, position = line.command["arguments"], len(line.arguments)
    if position < len(arguments):
        return _values(arguments[position]["values"], begun, options)
    if not arguments or not arguments[-1]["many"]:
        return []
    found = _values(arguments[-1]["values"], begun, options)
    return [(word, text) for word, text in found if word not in line.arguments]


def _values(values: str | list[str] | None, begun: str, options: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the values of an argument or option that begin so; none if the shell completes them, as files."""
    if isinstance(values, list):
        return [(one, "") for one in values if one.startswith(begun)]
    if values not in _STORED:
        return []
    from aiozkqueue_completion.servers import names  # noqa: PLC0415 - most completions need no server

    return [(name, "") for name in names(values, begun, options)]
