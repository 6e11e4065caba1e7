"""Reads forms, within limits for strangers and for visitors who may change something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs

from aiozkqueue.http.core import bodies, problems

if TYPE_CHECKING:
    from starlette.requests import Request

#: The maximum number of messages that one form selects.
SELECTED: Final = 5_000
#: The maximum size of a form in bytes: five thousand ids.
FORM_LIMIT: Final = 1024 * 1024
#: The maximum size of a form without ids, which strangers may send, bytes.
SMALL_FORM_LIMIT: Final = 4 * 1024
#: The maximum number of escapes in a form: each costs processor time, and ids have almost none.
MOST_ESCAPES: Final = 4 * SELECTED
#: The maximum number of fields of a form, without the ids.
SMALL_FORM_FIELDS: Final = 20


class Form:
    """The fields of a form."""

    def __init__(self, fields: dict[str, list[str]]) -> None:
        self._fields = fields

    def get(self, name: str) -> str:
        """Return the first value of a field; empty if the form does not have it."""
        return self._fields.get(name, [""])[0]

    def all(self, name: str) -> list[str]:
        """Return all values of a field."""
        return self._fields.get(name, [])


async def read_form(request: Request, limit: int) -> Form:
    """Read the form of a request. A form that is too large or malformed is empty."""
    try:
        content = (await bodies.whole(request, limit)).decode()
        if content.count("%") > MOST_ESCAPES:
            return Form({})
        return Form(parse_qs(content, keep_blank_values=True, max_num_fields=SELECTED + SMALL_FORM_FIELDS))
    except (problems.ProblemError, ValueError):
        return Form({})
