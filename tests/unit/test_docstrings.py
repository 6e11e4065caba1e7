"""Docstrings refer to things that exist.

A docstring "See `Class`" means that a method implements the one of that class with the same name: if the class renames
its method, the other would never be called again.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import aiozkqueue

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(aiozkqueue.__file__).parent


class Declared(NamedTuple):
    """A class: where it is, its members, the methods that refer to another class, and the names of its bases."""

    where: str
    members: set[str]
    references: dict[str, str]
    bases: list[str]


@cache
def classes() -> dict[str, list[Declared]]:
    """Return all classes by name."""
    found: defaultdict[str, list[Declared]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                bases = [re.split(r"[\[(]", ast.unparse(base))[0].rpartition(".")[2] for base in node.bases]
                where = f"{path.relative_to(PACKAGE)} {node.name}"
                found[node.name].append(Declared(where, set(_members(node)), dict(_references(node)), bases))
    return found


def _members(node: ast.ClassDef) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            yield inner.name
        elif isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name) and inner.value.id == "self":
            yield inner.attr
        elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            yield inner.id


def _references(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for member in node.body:
        if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
            referred = re.match(r"See `(\w+)`", ast.get_docstring(member) or "")
            if referred is not None:
                yield member.name, referred[1]


def members_of(name: str) -> set[str]:
    """Return the members of a class of the package, with those that it inherits."""
    inherited = {base for declared in classes().get(name, ()) for base in declared.bases if base != name}
    own = {member for declared in classes().get(name, ()) for member in declared.members}
    return own.union(*map(members_of, inherited))


def test_a_method_that_refers_to_a_class_has_the_name_of_a_method_of_it() -> None:
    references = [
        (f"{declared.where}.{method}", method, referred)
        for several in classes().values()
        for declared in several
        for method, referred in declared.references.items()
        if referred in classes()
    ]
    assert len(references) > 100, "the pattern still finds them"
    assert [where for where, method, referred in references if method not in members_of(referred)] == []


def test_a_member_that_is_named_with_its_class_exists() -> None:
    missing: list[str] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for name, member in re.findall(r"`([A-Z]\w+)\.(\w+)`", path.read_text(encoding="utf-8")):
            if name in classes() and member not in members_of(name):
                missing.append(f"{path.relative_to(PACKAGE)}: {name}.{member}")
    assert missing == []
