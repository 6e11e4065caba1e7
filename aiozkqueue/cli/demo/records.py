"""The messages of the demo's two queues, and how a worker processes them."""

from __future__ import annotations

from pydantic import BaseModel


class Line(BaseModel):
    """A line of the text, on its way to the workers."""

    number: int
    text: str


class Result(BaseModel):
    """What a worker made of a line."""

    number: int
    text: str
    words: int
    worker: str
    handed_over: float  # when the worker was given the line, by the clock that all processes of a machine share


def transformed(text: str) -> tuple[str, int]:
    """The job itself: the line in capitals, and its number of words."""
    return text.upper(), len(text.split())
