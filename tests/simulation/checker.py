"""The checker decides from the results of the clients and the final state whether a history has kept the guarantees.

A rule is a generator of violations, registered by `@rule` in a module of `tests.simulation.rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.simulation.history import History
from tests.simulation.joining import load

Rule = Callable[[History], Iterator[str]]

rules: dict[str, Rule] = {}


def rule(function: Rule) -> Rule:
    """Register a rule under its name."""
    rules[function.__name__] = function
    return function


def check(history: History) -> list[str]:
    """Return all violations, each with its rule."""
    load("tests.simulation.rules")
    return [f"{name}: {violation}" for name, check_rule in rules.items() for violation in check_rule(history)]
