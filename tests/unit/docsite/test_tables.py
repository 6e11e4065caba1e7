"""The reference has tables with every option of functions, records, commands and Spark."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, is_typeddict

import griffe
import pytest
from griffe import DocstringSectionKind

import aiozkqueue as zq
from aiozkqueue.cli.lazy import imported
from aiozkqueue.spark.options import parse_options
from docsite.command_tables import commands, parameters, tables
from docsite.docstrings import Docstrings
from docsite.public import INTERNAL, common_errors, documented

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


ROOT = Path(__file__).parents[3]
#: A function with at least this many keyword-only options lists its parameters.
MANY = 3
#: Classes that users do not create themselves.
MADE = {"aiozkqueue.Consumer", "aiozkqueue.Listener"}


@cache
def package() -> griffe.Module:
    """The package, as mkdocstrings reads it."""
    loaded = griffe.load("aiozkqueue", search_paths=[ROOT], extensions=griffe.load_extensions(Docstrings()))
    assert isinstance(loaded, griffe.Module)
    return loaded


def listed(path: str) -> dict[str, Any]:
    """Return the rows of an object's tables, as types by names."""
    found = package()[documented()[path].home.removeprefix("aiozkqueue.")]
    parser = griffe.Parser.google
    options = {"warn_missing_types": False, "warn_unknown_params": False}
    assert found.docstring is not None, path
    return {
        row.name: row
        for section in found.docstring.parse(parser, **options)
        if section.kind in (DocstringSectionKind.parameters, DocstringSectionKind.attributes)
        for row in section.value
    }


def functions() -> Iterator[tuple[str, Callable[..., object]]]:
    for path, member in documented().items():
        value: Any = member.value
        if inspect.isclass(value) and not is_dataclass(value) and path not in MADE:
            value = vars(value).get("__init__")
        if inspect.isfunction(value):
            yield path, value


def records() -> Iterator[tuple[str, set[str]]]:
    """Yield the public data classes and typed dictionaries with the names of their fields."""
    for path, member in documented().items():
        record: Any = member.value
        if inspect.isclass(record) and "__dataclass_fields__" in vars(record):
            names = {field.name for field in fields(cast("Any", record))}
        elif is_typeddict(record):
            names = set(record.__annotations__)
        else:
            continue
        yield path, {name for name in names - INTERNAL.get(member.name, set()) if not name.startswith("_")}


def test_each_function_with_many_options_lists_its_parameters() -> None:
    wrong: list[str] = []
    for path, function in functions():
        given = [
            parameter
            for parameter in inspect.signature(function).parameters.values()
            if parameter.name not in {"self", "cls"}
        ]
        named = {parameter.name for parameter in given if parameter.kind is not parameter.VAR_KEYWORD}
        rows = set(listed(path))
        if sum(parameter.kind is parameter.KEYWORD_ONLY for parameter in given) >= MANY and not rows:
            wrong.append(f"{path} has no section Args")
        wrong += [f"{path} does not list {name}" for name in sorted(named - rows) if rows]
        wrong += [
            f"{path} lists {name}, which is not a parameter"
            for name in sorted(rows - {parameter.name for parameter in given})
        ]
    assert wrong == []


def test_each_field_of_a_public_record_is_in_a_table_with_its_type() -> None:
    wrong: list[str] = []
    for path, names in records():
        rows = listed(path)
        wrong += [f"{path}.{name} is not listed" for name in sorted(names - set(rows))]
        wrong += [f"{path}.{name} has no type" for name in sorted(names) if name in rows and not rows[name].annotation]
    assert wrong == []


@pytest.mark.parametrize(
    ("path", "option", "default"),
    [
        ("aiozkqueue.connect", "session_timeout", "10"),
        ("aiozkqueue.Queue.consume", "prefetch", "32"),
        ("aiozkqueue.Exponential", "maximum", "60"),
        ("aiozkqueue.http.Settings", "request_timeout", "9.0"),
    ],
)
def test_tables_show_the_default(path: str, option: str, default: str) -> None:
    assert str(listed(path)[option].value) == default


def test_common_errors_are_listed_with_the_class_and_not_with_its_members() -> None:
    queue = documented()["aiozkqueue.Queue"]
    assert set(common_errors(queue)) == {"AccessDeniedError", "SessionClosedError", "WrongLoopError"}
    of_class, of_member = package()["Queue"].docstring, package()["Queue.size"].docstring
    assert of_class is not None
    assert of_member is not None
    assert "SessionClosedError" in of_class.value
    assert "SessionClosedError" not in of_member.value


def test_each_option_of_each_command_is_in_a_table() -> None:
    text = tables()
    sections = dict(re.findall(r"^### aiozkqueue ([^\n]+)\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL))
    shared = text[text.index("## Connection options") :]
    missing = [
        f"{command.name} {name}"
        for command in commands()
        for parameter in parameters(imported(command.command))
        if parameter.param_type_name == "option"
        for name in parameter.opts
        if f"`{name}`" not in sections[command.name] + shared
    ]
    assert missing == []


def test_each_argument_and_option_of_a_command_has_a_meaning() -> None:
    assert [line for line in tables().splitlines() if line.startswith("| `") and line.endswith("|  |")] == []


def test_each_option_of_spark_is_in_the_table_of_its_page() -> None:
    page = (ROOT / "docs" / "spark.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    shown = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    with pytest.raises(zq.InvalidOptionError) as refused:
        parse_options({"unknown": ""})
    known = set(str(refused.value).partition("the options are ")[2].split(", "))
    assert known - shown == {"path"}, "the row of `queue` describes the argument of `load` and `save`"
