"""The messages of the demo's two queues, and the work on them."""

from __future__ import annotations

from pydantic import BaseModel


class Line(BaseModel):
    """A line of the text, on its way to the workers."""

    number: int
    text: str


class Result(BaseModel):
    """The result of a worker for one line."""

    number: int
    text: str
    words: int
    worker: str
    handed_over: float  # the time of the delivery, on the clock that all processes of a machine share


def transformed(text: str) -> tuple[str, int]:
    """The work itself: return the line in capitals, and its number of words."""
    return text.upper(), len(text.split())
