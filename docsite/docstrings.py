"""Hands the docstrings to mkdocstrings as it reads them: each error spelt out, each name that is public a link."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from griffe import Extension

from docsite import errors_table
from docsite.public import Documented, by_home, documented, raised_by, resolve
from docsite.raises import read

if TYPE_CHECKING:
    from griffe import Object

_NAMED = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)`(?!`)")


class Docstrings(Extension):
    """Rewrites what is public; all else is marked as private, so that no page shows it."""

    def on_object(self, *, obj: Object, **_: Any) -> None:  # noqa: ANN401 - what griffe may hand over one day
        """Rewrite one docstring."""
        if obj.is_module:
            return
        member = by_home().get(obj.path) or documented().get(obj.path)
        if member is None:
            # Fields have their docstrings below them, and no home of their own.
            field = obj.is_attribute and "property" not in obj.labels and not obj.name.startswith("_")
            obj.public = field and bool(obj.docstring)
            if obj.docstring and (owner := by_home().get(obj.parent.path if obj.parent else "")):
                obj.docstring.value = linked(obj.docstring.value, owner)
            return
        obj.public = True
        if obj.docstring:
            obj.docstring.value = rewritten(obj.docstring.value, member)


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
    found = documented().get(f"aiozkqueue.{error}")
    return found.docstring.partition("\n")[0] if found else "see its own description."
