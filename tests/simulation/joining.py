"""Registers the features of the simulation: the modules of a feature in each folder are found automatically."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module


@cache
def load(package: str) -> None:
    """Import every module of a package, by name, so that each registers its parts."""
    for module in pkgutil.iter_modules(import_module(package).__path__):
        import_module(f"{package}.{module.name}")
