"""All that is public, and the errors that each member says it raises."""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import aiozkqueue
from docsite.raises import Like, Raised, read

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULES: Final = (
    "aiozkqueue",
    "aiozkqueue.admin",
    "aiozkqueue.errors",
    "aiozkqueue.listeners",
    "aiozkqueue.bus",
    "aiozkqueue.schedule",
    "aiozkqueue.fastapi",
    "aiozkqueue.http",
    "aiozkqueue.http.client",
    "aiozkqueue.metrics",
    "aiozkqueue.spark",
    "aiozkqueue.spark.audit",
    "aiozkqueue.spark.transfer",
    "aiozkqueue.testing",
    "aiozkqueue.tracing",
)
# Docstrings of all modules name what these have.
_COMMON: Final = ("aiozkqueue", "aiozkqueue.admin", "aiozkqueue.errors")
# Members of public classes that the package's own layers call, and users have no use for.
INTERNAL: Final = {
    "Fault": {"released", "strike", "takes"},
    "Keys": {"caller"},
    "HistoryRecord": {"decode", "encode", "place", "unknown"},
    "OpenTelemetry": {"creating", "handling", "processing", "received", "sending", "settling"},
}

#: The least number of members whose common errors are listed with their class.
_SHARED: Final = 3


@dataclass(frozen=True)
class Documented:
    """A public object: its public and its real path, and its docstring."""

    module: str
    name: str
    home: str
    docstring: str
    value: Any

    @property
    def path(self) -> str:
        """As users write it."""
        return f"{self.module}.{self.name}"


@cache
def documented() -> dict[str, Documented]:
    """All public names and their public members, by `Documented.path`."""
    return {found.path: found for module in MODULES for found in _of_module(module)}


@cache
def by_home() -> dict[str, Documented]:
    """The same by where they are written, as griffe and tracebacks know them."""
    return {found.home: found for found in documented().values()}


def error_named(name: str) -> Documented | None:
    """Find an error of the package, whether users import it from `aiozkqueue` or from `aiozkqueue.errors`."""
    return by_home().get(f"aiozkqueue.errors.{name}")


def resolve(name: str, near: Documented) -> Documented | None:
    """Find what a docstring calls ``name``: a member of its class, a name of its module, or one of the package's."""
    owner = documented()[f"{near.module}.{near.name.partition('.')[0]}"].value
    homes = [f"{of.__module__}.{of.__qualname__}.{name}" for of in getattr(owner, "__mro__", ())]
    inherited = next((by_home()[home] for home in homes if home in by_home()), None)
    places = (*(f"{module}.{name}" for module in (near.module, *_COMMON)), name)
    return inherited or next((documented()[place] for place in places if place in documented()), None)


def raised_by(member: Documented, seen: tuple[str, ...] = ()) -> list[Raised]:
    """Return the errors of a member, those that it shares with others included, each once.

    Raises:
        ValueError: what it says cannot be read, or names a member that there is none of.
    """
    said = read(member.docstring)
    if said.unread:
        msg = f"{member.path}: no error, and no member, under Raises: {said.unread}"
        raise ValueError(msg)
    found: dict[str, Raised] = {}
    for entry in said.entries:
        if isinstance(entry, Raised):
            found[entry.error] = entry
            continue
        other = _like(entry, member)
        if other.path not in seen:
            for raised in raised_by(other, (*seen, member.path)):
                if raised.error not in entry.but:
                    found.setdefault(raised.error, raised)
    return list(found.values())


def common_errors(owner: Documented) -> tuple[str, ...]:
    """Return the errors that most members of a class raise for no reason of their own.

    The reference lists them once, with the class.
    """
    members = [one for path, one in documented().items() if path.rpartition(".")[0] == owner.path and "." in one.name]
    counted = Counter(one.error for member in members for one in raised_by(member) if not one.when)
    most = max(_SHARED, len(members) / 2)
    return tuple(sorted(error for error, count in counted.items() if count >= most))


def _like(entry: Like, member: Documented) -> Documented:
    other = resolve(entry.member, member)
    if other is None:
        msg = f"{member.path}: Raises: as `{entry.member}`, which is nothing public"
        raise ValueError(msg)
    return other


def _of_module(module: str) -> Iterator[Documented]:
    loaded = import_module(module)
    for name in getattr(loaded, "__all__", ()):
        value = getattr(loaded, name)
        if module == "aiozkqueue.errors" and hasattr(aiozkqueue, name):
            continue  # `aiozkqueue` has it, too
        if not (inspect.isclass(value) or inspect.isfunction(value)):
            # A constant or an alias: what Python tells of it is of its own type.
            yield Documented(module, name, f"{module}.{name}", "", value)
            continue
        home = f"{value.__module__}.{value.__qualname__}"
        yield Documented(module, name, home, inspect.cleandoc(value.__doc__ or ""), value)
        if inspect.isclass(value):
            yield from _members(module, name, value)


def _members(module: str, owner: str, of: type) -> Iterator[Documented]:
    for name, member in vars(of).items():
        if name.startswith("_") or name in INTERNAL.get(owner, ()):
            continue
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if inspect.isfunction(function):
            docstring = inspect.cleandoc(function.__doc__ or "")
            yield Documented(
                module, f"{owner}.{name}", f"{of.__module__}.{of.__qualname__}.{name}", docstring, function
            )
