"""Tags and filters as they are typed: `region=eu`, `size>=5`, `class<=standard`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import typer

import aiozkqueue as zq

if TYPE_CHECKING:
    from aiozkqueue.layout import Condition, Operator

_OPERATORS: Final[dict[str, Operator]] = {"=": "eq", ">=": "ge", ">": "gt", "<=": "le", "<": "lt"}
_FILTER: Final = re.compile(r"([^=<>]+)(>=|<=|=|>|<)(.*)", re.DOTALL)
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")


def parse_tags(texts: Iterable[str]) -> dict[str, str | int] | None:
    """Return the tags of a put; a value of digits is an integer. Raises: typer.BadParameter."""
    return {name: _value(text) for name, text in parse_pairs("--tag", texts, "TAG=VALUE").items()} or None


def parse_pairs(option: str, texts: Iterable[str], metavar: str) -> dict[str, str]:
    """Return the names and values of a repeated option; each name may occur once. Raises: typer.BadParameter."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals or name in pairs:
            message = f"{option} {text}: expected {metavar}, with each name once"
            raise typer.BadParameter(message)
        pairs[name] = value
    return pairs


def parse_filters(texts: Iterable[str], enums: Iterable[str]) -> Condition | None:
    """Return the condition of a consumer that takes messages that pass every filter.

    Raises: typer.BadParameter, InvalidOptionError.
    """
    named = parse_pairs("--enum", enums, "TAG=LOW,…,HIGH")
    ordered = {name: zq.OrderedEnum(name, values.split(",")) for name, values in named.items()}
    filters: list[zq.Filter] = []
    for text in texts:
        match = _FILTER.fullmatch(text)
        if match is None:
            message = f"--filter {text}: give a tag, one of = > >= < <=, and a value"
            raise typer.BadParameter(message)
        name, comparison, value = match.groups()
        tag = ordered.get(name, name)
        filters.append(zq.Filter(tag, _OPERATORS[comparison], value if name in ordered else _value(value)))
        named.pop(name, None)
    for name in named:  # a consumer would take messages that the caller meant to leave
        message = f"--enum {name}: no --filter compares this tag"
        raise typer.BadParameter(message)
    return zq.All(*filters) if filters else None


def _value(text: str) -> str | int:
    return int(text) if _INTEGER.fullmatch(text) else text
