"""Hands the docstrings to mkdocstrings as it reads them: each error spelt out, each name that is public a link."""

from __future__ import annotations

import re
from dataclasses import is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, is_typeddict

from griffe import Extension

from docsite import errors_table
from docsite.public import INTERNAL, Documented, by_home, documented, error_named, raised_by, resolve
from docsite.raises import read

if TYPE_CHECKING:
    from griffe import Class, Object

_NAMED = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)`(?!`)")


class Docstrings(Extension):
    """Rewrites the docstrings of what is public, and takes off its members that are not."""

    def on_object(self, *, obj: Object, **_: Any) -> None:  # noqa: ANN401 - options that griffe may add
        """Rewrite one docstring."""
        if obj.is_module or obj.docstring is None:
            return
        if member := by_home().get(obj.path) or documented().get(obj.path):
            obj.docstring.value = rewritten(obj.docstring.value, member)
        elif obj.parent and (owner := by_home().get(obj.parent.path)):
            # A field: it has a docstring below it, and none that Python knows of.
            obj.docstring.value = linked(obj.docstring.value, owner)

    def on_class(self, *, cls: Class, **_: Any) -> None:  # noqa: ANN401 - as above
        """Take the members off that are for the package's own use."""
        owner = by_home().get(cls.path)
        if owner is None:
            return
        of = owner.value
        of_fields = issubclass(of, Enum | tuple) or is_dataclass(of) or is_typeddict(of)
        for name, member in list(cls.members.items()):
            field = member.is_attribute and "property" not in member.labels and (of_fields or member.docstring)
            if f"{owner.path}.{name}" not in documented() and (not field or name in INTERNAL.get(owner.name, ())):
                cls.del_member(name)


def rewritten(docstring: str, member: Documented) -> str:
    """Return a docstring with a section for its errors, and links.

    Raises:
        ValueError: its errors cannot be read.
    """
    text = linked(read(docstring).text, member)
    if raisers := errors_table.raisers().get(member.name):
        text = f"{text}\n\nRaised by {errors_table.links(raisers)}."
    raised = raised_by(member)
    if not raised:
        return text
    lines = [f"    {one.error}: {linked(one.when, member) or _meaning(one.error)}" for one in raised]
    return "\n".join([text, "", "Raises:", *lines])


def linked(text: str, near: Documented) -> str:
    """Return a text in which each name in single backticks that is public leads there."""

    def link(match: re.Match[str]) -> str:
        found = resolve(match[1], near)
        return match[0] if found is None else f"[`{match[1]}`][{found.path}]"

    return _NAMED.sub(link, text)


def _meaning(error: str) -> str:
    """What an error means wherever it is raised: its own first sentence."""
    found = error_named(error)
    return found.docstring.partition("\n")[0] if found else "see its own description."
