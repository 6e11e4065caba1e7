"""Histories that are too rare at random: each story is one of them, and a seed determines its moments.

A feature adds a separate module here. `@story` registers a story. No story may break a rule. A mutation that only
a story shows is applied to it.
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
