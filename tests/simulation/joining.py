"""How features join the simulation: by a module of their own in each of its folders, found by looking."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module


@cache
def load(package: str) -> None:
    """Import every module in a package, by name, so that each registers what it brings."""
    for module in pkgutil.iter_modules(import_module(package).__path__):
        import_module(f"{package}.{module.name}")
