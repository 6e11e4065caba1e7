"""What the extras bring: an import that fails names the package that is absent or has another version."""

from __future__ import annotations

import re
from contextlib import contextmanager
from importlib import metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING

from aiozkqueue.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Generator


def missing(module: str, extra: str) -> MissingExtraError:
    """Return the error for a module that is not installed, which an extra brings (or several: ``"spark,embedded"``)."""
    return MissingExtraError(f"{module} is not installed: pip install 'aiozkqueue[{extra}]'", name=module)


def _unfit(module: str, extra: str, cause: ImportError) -> MissingExtraError:
    """Return the error for a module that is installed, in a version that lacks what is imported from it."""
    package = metadata.packages_distributions().get(module, [module])[0]
    try:
        found = f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        found = package
    wanted = _requirement(package, extra)
    needed = wanted or "another version"
    msg = f"{found} is installed, and aiozkqueue needs {needed} ({cause}): pip install 'aiozkqueue[{extra}]'"
    return MissingExtraError(msg, name=module)


def _requirement(package: str, extra: str) -> str | None:
    """Return how an extra names a package and its versions; None when that is not known."""
    try:
        all_of_them = metadata.requires("aiozkqueue") or []
    except metadata.PackageNotFoundError:  # it runs from its sources
        return None
    for one in all_of_them:
        wanted, _, condition = (part.strip() for part in one.partition(";"))
        name = re.split(r"[^\w.-]", wanted, maxsplit=1)[0]
        if _normal(name) == _normal(package) and any(f"'{part}'" in condition for part in extra.split(",")):
            return wanted
    return None


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@contextmanager
def needs(extra: str) -> Generator[None]:
    """Import in this block what an extra brings.

    Raises:
        MissingExtraError: a package of it is not installed, or in a version that lacks what is imported.
    """
    try:
        yield
    except MissingExtraError:
        raise
    except ImportError as error:
        module = (error.name or "").partition(".")[0]
        if module in {"", "aiozkqueue"}:  # a mistake of ours, which no installation mends
            raise
        if error.name == module and isinstance(error, ModuleNotFoundError):
            raise missing(module, extra) from error
        if find_spec(module) is None:  # an import of a part of it, without the whole
            raise missing(module, extra) from error
        raise _unfit(module, extra, error) from error
