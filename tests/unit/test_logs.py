"""Each log record of the queue's layers names its queue, message or transaction."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import aiozkqueue

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(aiozkqueue.__file__).parent
LAYERS = ("queue", "bus", "schedule", "spark")
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
# Records about the whole process: a signal has arrived, or Spark's JVM has ended.
ABOUT_NONE = {"session/run.py", "spark/orphans.py"}


def _calls(file: Path) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(file.read_text())):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in LEVELS
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id in {"log", "_log"}
        ):
            yield node


def test_every_record_carries_ids() -> None:
    calls = {
        f"{file.relative_to(PACKAGE)}:{call.lineno}": call
        for layer in LAYERS
        for file in sorted((PACKAGE / layer).rglob("*.py"))
        if str(file.relative_to(PACKAGE)) not in ABOUT_NONE
        for call in _calls(file)
    }
    assert len(calls) > 15
    assert [place for place, call in calls.items() if "extra" not in {keyword.arg for keyword in call.keywords}] == []
