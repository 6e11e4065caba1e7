"""Public names have docstrings, a place in the reference, and correct lists of errors."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from aiozkqueue import errors
from docsite import errors_table
from docsite.public import INTERNAL, MODULES, documented, raised_by

if TYPE_CHECKING:
    from collections.abc import Iterator

    from docsite.public import Documented

ROOT = Path(__file__).parents[3]
PAGES = {page: page.read_text() for page in sorted((ROOT / "docs").rglob("*.md"))}
SHOWN = [name for text in PAGES.values() for name in re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)]
# These are not in the package's tree of errors, because they concern tests.
OF_TESTS = {"ServerUnavailableError", "PortTakenError", "StuckError"}
# These always end, and raise no errors.
WITHOUT_ERRORS = {
    "aiozkqueue.Consumer.aclose",
    "aiozkqueue.http.client.FixedHosts.urls",
    "aiozkqueue.http.client.QueueServiceClient.aclose",
    "aiozkqueue.metrics.SessionCollector.text",
    "aiozkqueue.testing.Cluster.client",
    "aiozkqueue.testing.handle",
}


def public_names() -> list[str]:
    return [path for path, member in documented().items() if "." not in member.name]


def test_every_public_member_is_described_and_its_listed_errors_exist() -> None:
    wrong = [f"{path}: {what}" for path, member in documented().items() for what in _wrong(path, member)]
    assert wrong == []


def _wrong(path: str, member: Documented) -> Iterator[str]:
    if not member.docstring and (inspect.isclass(member.value) or inspect.isfunction(member.value)):
        yield "has no docstring: what it does for the caller, units, Raises:"
    for raised in raised_by(member):
        known = inspect.isclass(getattr(builtins, raised.error, None)) or raised.error in OF_TESTS
        known = known or f"{member.module}.{raised.error}" in documented()  # as in the HTTP client
        if not known and raised.error not in errors_table.names():
            yield f"says it raises {raised.error}, which there is not"
    if inspect.iscoroutinefunction(member.value) and path not in WITHOUT_ERRORS and not raised_by(member):
        yield "does not say under Raises: what it raises"


def test_every_public_name_is_in_the_reference_once() -> None:
    shown, public = Counter(SHOWN), Counter(public_names())
    assert public - shown == Counter(), "add these to a page of docs/reference, or to docs/errors.md: `::: name`"
    assert shown - public == Counter(), "these are not public, or listed twice"


def test_every_error_is_documented_by_a_member_that_raises_it() -> None:
    tree = {getattr(errors, name) for name in errors_table.names()}
    documented_errors = {getattr(errors, name) for name, paths in errors_table.raisers().items() if paths}
    unheard = [error for error in tree if not any(issubclass(listed, error) for listed in documented_errors)]
    assert unheard == []


def test_every_error_of_the_package_is_in_the_table() -> None:
    defined = {name for name, value in vars(errors).items() if _is(value, errors.QueueError)}
    assert set(errors_table.names()) == defined
    table = errors_table.table()
    assert all(f"[`{name}`][aiozkqueue." in table for name in defined)


def test_every_error_is_raised_somewhere() -> None:
    code = [ast.parse(file.read_text()) for file in sorted((ROOT / "aiozkqueue").rglob("*.py"))]
    made = {
        name
        for tree in code
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for name in (getattr(node.func, "id", None), getattr(node.func, "attr", None))
    }
    # The root class is only raised as one of its subclasses.
    assert set(errors_table.names()) - made - {"QueueError"} == set()


def test_every_name_listed_as_internal_exists() -> None:
    owners = {member.name: member.value for member in documented().values() if inspect.isclass(member.value)}
    gone = [
        f"{owner}.{name}"
        for owner, names in INTERNAL.items()
        for name in names
        if not hasattr(owners[owner], name) and name not in inspect.getsource(owners[owner])
    ]
    assert gone == []


def test_the_reference_covers_every_public_module() -> None:
    assert {path.rpartition(".")[0] for path in public_names()} == set(MODULES)


def _is(value: object, kind: type) -> bool:
    return inspect.isclass(value) and issubclass(value, kind)
