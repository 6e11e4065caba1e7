"""Histories that chance makes too seldom: each a story of its own, its instants by a seed.

A feature adds a module of its own here. A story is registered by `@story`: none may break a rule, and a mutation that
only a story shows is looked for in it.
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
