"""The docstring of each package that has a map names all of its modules."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import aiozkqueue

PACKAGE = Path(aiozkqueue.__file__).parent
MAPPED = (
    "batches",
    "http",
    "http/core",
    "queue",
    "queue/candidates",
    "queue/claim",
    "queue/commit",
    "queue/put",
    "queue/redelivery",
    "queue/state",
    "runtime",
    "session",
)


@pytest.mark.parametrize("name", MAPPED)
def test_the_map_of_a_package_names_each_of_its_modules(name: str) -> None:
    folder = PACKAGE / name
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    modules = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    named = set(re.findall(r"`+(\w+)`+", text)) | set(re.findall(r"`(?:\w+\.)+(\w+)`", text))
    if name == "http":
        named.add("core")  # `core.service`
    assert modules - named == {"__init__"}
