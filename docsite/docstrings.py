"""Prepares the docstrings for mkdocstrings: errors in full, links to public names, and tables of fields."""

from __future__ import annotations

import re
from dataclasses import is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, is_typeddict

from griffe import Attribute, Extension

from docsite import errors_table
from docsite.public import (
    INTERNAL,
    Documented,
    by_home,
    common_errors,
    documented,
    error_named,
    raised_by,
    resolve,
)
from docsite.raises import read

if TYPE_CHECKING:
    from collections.abc import Iterable

    from griffe import Class, Object

_NAMED = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)`(?!`)")


class Docstrings(Extension):
    """Rewrites the docstrings of public objects, and removes members that are not public."""

    def on_object(self, *, obj: Object, **_: Any) -> None:  # noqa: ANN401 - options that griffe may add
        """Rewrite one docstring."""
        if obj.is_module or obj.docstring is None:
            return
        if member := by_home().get(obj.path) or documented().get(obj.path):
            obj.docstring.value = rewritten(obj.docstring.value, member)
        elif obj.parent and (owner := by_home().get(obj.parent.path)):
            # A field: its docstring is below it, and Python does not know it.
            obj.docstring.value = linked(obj.docstring.value, owner)

    def on_class(self, *, cls: Class, **_: Any) -> None:  # noqa: ANN401 - as above
        """Remove members that only the package uses, and show the fields of a record as a table."""
        owner = by_home().get(cls.path)
        if owner is None:
            return
        of = owner.value
        is_record = is_dataclass(owner.value) or is_typeddict(owner.value)
        of_fields = is_record or issubclass(of, Enum | tuple)
        for name, member in list(cls.members.items()):
            if name == "__init__":  # has the parameters of the class, and is not shown itself
                continue
            field = member.is_attribute and "property" not in member.labels and (of_fields or member.docstring)
            if f"{owner.path}.{name}" not in documented() and (not field or name in INTERNAL.get(owner.name, ())):
                cls.del_member(name)
        if is_record and cls.docstring is not None:
            cls.docstring.value = "\n".join([cls.docstring.value, *_field_table(cls)])


def _field_table(cls: Class) -> list[str]:
    """Return a section with the fields of a record, and remove their members.

    The section becomes a table: name, type, meaning and, if all fields have defaults, the default. A docstring with a
    section of its own needs none.
    """
    fields = {
        name: member
        for name, member in cls.members.items()
        if isinstance(member, Attribute) and "property" not in member.labels
    }
    for name in fields:
        cls.del_member(name)
    if not fields or (cls.docstring is not None and "\nArgs:\n" in cls.docstring.value):
        return []
    with_defaults = all(field.value is not None for field in fields.values())
    lines = ["", "Args:" if with_defaults else "Attributes:"]
    for name, member in fields.items():
        first, *more = ("-" if member.docstring is None else member.docstring.value).splitlines()
        kind = "" if with_defaults else f" ({member.annotation})"  # a parameter has its type from the signature
        lines += [f"    {name}{kind}: {first}", *(f"        {line}" for line in more)]
    return lines


def rewritten(docstring: str, member: Documented) -> str:
    """Return a docstring with a section for its errors, and links.

    Raises:
        ValueError: its errors cannot be read.
    """
    text = linked(read(docstring).text, member)
    if raisers := errors_table.raisers().get(member.name):
        text = f"{text}\n\nRaised by {errors_table.links(raisers)}."
    owner = documented().get(member.path.rpartition(".")[0])
    if owner is None:  # a function or a class
        shown = raised_by(member)
        common = common_errors(member)
        if common:
            text = f"{text}\n\nMost members also raise {_listed(common, member)}."
    else:
        common = common_errors(owner)
        shown = [one for one in raised_by(member) if one.when or one.error not in common]
    if not shown:
        return text
    lines = [f"    {one.error}: {linked(one.when, member) or _meaning(one.error)}" for one in shown]
    return "\n".join([text, "", "Raises:", *lines])


def linked(text: str, near: Documented) -> str:
    """Return a text in which each name in single backticks that is public leads there."""

    def link(match: re.Match[str]) -> str:
        found = resolve(match[1], near)
        return match[0] if found is None else f"[`{match[1]}`][{found.path}]"

    return _NAMED.sub(link, text)


def _listed(errors: Iterable[str], near: Documented) -> str:
    """Return errors with their meanings as a part of a sentence."""
    return ", ".join(f"{linked(f'`{error}`', near)} ({_meaning(error).rstrip('.')})" for error in errors)


def _meaning(error: str) -> str:
    """Return the general meaning of an error: its own first sentence."""
    found = error_named(error)
    return found.docstring.partition("\n")[0] if found else "see its own description."
