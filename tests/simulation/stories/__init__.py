"""Histories that occur too rarely at random. Each story is one of them, and its seed determines the timing.

A feature adds a module here. `@story` registers a story, which must not break a rule. A mutation that only a story
shows is applied to that story.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.history import History

Story = Callable[[int | str], History]

stories: list[Story] = []


def story(function: Story) -> Story:
    """Register a story."""
    stories.append(function)
    return function
