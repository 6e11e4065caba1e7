"""Every public name is documented: the names in each `__all__`, and the members that users reach through them."""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING

import pytest

import aiozkqueue
from aiozkqueue import admin, errors

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULES = [
    "aiozkqueue",
    "aiozkqueue.admin",
    "aiozkqueue.bus",
    "aiozkqueue.errors",
    "aiozkqueue.fastapi",
    "aiozkqueue.http",
    "aiozkqueue.http.client",
    "aiozkqueue.listeners",
    "aiozkqueue.metrics",
    "aiozkqueue.schedule",
    "aiozkqueue.spark",
    "aiozkqueue.spark.audit",
    "aiozkqueue.spark.transfer",
    "aiozkqueue.testing",
    "aiozkqueue.tracing",
    "aiozkqueue.worker",
]


def undocumented(module: str) -> Iterator[str]:
    """Yield the public classes, methods and functions of a module that have no docstring."""
    public = importlib.import_module(module)
    for name in public.__all__:
        found = getattr(public, name)
        if not (inspect.isclass(found) or inspect.isfunction(found)):
            continue  # a constant or an alias has a comment in the source instead
        if not inspect.getdoc(found):
            yield name
        if inspect.isclass(found):
            for method, value in vars(found).items():
                documentable = inspect.isfunction(value) or isinstance(value, property | classmethod | staticmethod)
                if not method.startswith("_") and documentable and not inspect.getdoc(getattr(found, method)):
                    yield f"{name}.{method}"


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_documented(module: str) -> None:
    assert list(undocumented(module)) == []


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_exists_and_is_listed_once(module: str) -> None:
    public = importlib.import_module(module)
    assert [name for name in public.__all__ if not hasattr(public, name)] == []
    assert len(set(public.__all__)) == len(public.__all__)
    assert public.__doc__


def test_the_package_itself_has_at_most_60_names() -> None:
    assert len(aiozkqueue.__all__) <= 60
    assert set(aiozkqueue.__all__) <= set(dir(aiozkqueue))


def test_the_package_has_no_name_that_only_operators_use() -> None:
    assert set(admin.__all__).isdisjoint(aiozkqueue.__all__)


def test_the_errors_of_the_package_are_those_of_its_module_of_errors() -> None:
    assert all(
        getattr(aiozkqueue, name) is getattr(errors, name) for name in errors.__all__ if hasattr(aiozkqueue, name)
    )
    unlisted = [name for name in aiozkqueue.__all__ if name.endswith("Error") and name not in errors.__all__]
    assert unlisted == []
