"""The code stays readable: no class, signature or function exceeds its limit.

The exceptions are listed. A list may shrink; an entry that is no longer needed fails the test.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from radon.complexity import cc_visit_ast

import aiozkqueue

PACKAGE = Path(aiozkqueue.__file__).parent

MAX_ATTRIBUTES = 20
MAX_PARAMETERS = 8
#: The highest complexity with rank C by radon.
MAX_COMPLEXITY = 20

#: Classes with more attributes: records with one field per figure or setting, records of the hot path, and objects that
#: own a session or a server.
WIDE_CLASSES = {
    "layout/configuration.py _Configuration",
    "operations/doctor/facts.py QueueFacts",
    "operations/stats.py QueueStats",
    "session/core.py SessionCore",
    "queue/state/claim.py Claim",
    "testing/simulator/ensemble.py Ensemble",
    "zookeeper/connection.py Connection",
}
#: Functions with more parameters. `connect`, `listener` and each command have one for each option.
LONG_SIGNATURES = {
    "session/connect.py connect",
    "queue/state/claim.py __init__",
}
#: Functions with a higher complexity: the loop that handles every message, and functions with one check per setting.
COMPLEX_FUNCTIONS = {
    "layout/settings.py __post_init__",
    "zookeeper/wire.py _decode_multi",
}


@cache
def _trees() -> list[tuple[str, ast.Module]]:
    return [
        (str(path.relative_to(PACKAGE)), ast.parse(path.read_text(encoding="utf-8")))
        for path in sorted(PACKAGE.rglob("*.py"))
    ]


def _attributes(node: ast.ClassDef) -> set[str]:
    declared = {
        statement.target.id
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }
    assigned = {
        child.attr
        for child in ast.walk(node)
        if isinstance(child, ast.Attribute)
        and isinstance(child.ctx, ast.Store)
        and isinstance(child.value, ast.Name)
        and child.value.id == "self"
    }
    return declared | assigned


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    names = [parameter.arg for parameter in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return len([name for name in names if name not in {"self", "cls"}])


def test_no_class_has_more_attributes_than_a_reader_can_hold() -> None:
    wide = {
        f"{path} {node.name}"
        for path, tree in _trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and len(_attributes(node)) > MAX_ATTRIBUTES
    }
    assert wide == WIDE_CLASSES


def test_no_function_has_more_parameters_than_a_reader_can_hold() -> None:
    long = {
        f"{path} {node.name}"
        for path, tree in _trees()
        if not path.startswith("cli/")
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _parameters(node) > MAX_PARAMETERS
    }
    assert long == LONG_SIGNATURES


def test_no_function_branches_more_than_a_reader_can_follow() -> None:
    functions = [
        (path, block)
        for path, tree in _trees()
        for found in cc_visit_ast(tree)
        for block in (found, *getattr(found, "methods", ()))
        if not hasattr(block, "methods")
    ]
    assert len(functions) > 1000
    complicated = {f"{path} {block.name}" for path, block in functions if block.complexity > MAX_COMPLEXITY}
    assert complicated == COMPLEX_FUNCTIONS
