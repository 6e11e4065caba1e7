"""A method whose docstring is "See `Class`" implements a method of that class under the same name.

If the class renames its method, such a method would never be called again.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import aiozkqueue

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(aiozkqueue.__file__).parent


class Declared(NamedTuple):
    """A class: its members, by name with the first word of a docstring's reference, and the names of its bases."""

    where: str
    members: dict[str, str]
    bases: list[str]


def _declared() -> Iterator[tuple[str, Declared]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                members = dict(_members(node))
                bases = [re.split(r"[\[(]", ast.unparse(base))[0].rpartition(".")[2] for base in node.bases]
                yield node.name, Declared(f"{path.relative_to(PACKAGE)} {node.name}", members, bases)


def _members(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for member in node.body:
        if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
            referred = re.match(r"See `(\w+)`", ast.get_docstring(member) or "")
            yield member.name, "" if referred is None else referred[1]
        elif isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
            yield member.target.id, ""


def test_a_method_that_refers_to_a_class_has_the_name_of_a_method_of_it() -> None:
    classes: defaultdict[str, list[Declared]] = defaultdict(list)
    for name, declared in _declared():
        classes[name].append(declared)

    def names_of(name: str) -> set[str]:
        return {
            member
            for declared in classes[name]
            for names in (declared.members, *map(names_of, declared.bases))
            for member in names
        }

    references = [
        (f"{declared.where}.{member}", member, referred)
        for several in list(classes.values())
        for declared in several
        for member, referred in declared.members.items()
        if referred in classes
    ]
    assert len(references) > 100
    assert [where for where, member, referred in references if member not in names_of(referred)] == []
