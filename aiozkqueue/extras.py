"""The optional dependencies (extras). An import that fails names the package that is missing or has another version."""

from __future__ import annotations

import re
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from aiozkqueue.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Generator


def missing(module: str, extra: str) -> MissingExtraError:
    """Return the error for a missing module of an extra (or of several: ``"spark,embedded"``)."""
    return MissingExtraError(f"{module} is not installed: pip install 'aiozkqueue[{extra}]'", name=module)


def _unfit(module: str, extra: str, cause: ImportError) -> MissingExtraError:
    """Return the error for a module whose installed version lacks an imported name."""
    from importlib import metadata  # noqa: PLC0415 - slow to import, and only for errors

    package = metadata.packages_distributions().get(module, [module])[0]
    try:
        installed = f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        installed = package
    requirement = _requirement(package, extra)
    needed = requirement or "another version"
    msg = f"{installed} is installed, and aiozkqueue needs {needed} ({cause}): pip install 'aiozkqueue[{extra}]'"
    return MissingExtraError(msg, name=module)


def _requirement(package: str, extra: str) -> str | None:
    """Return the requirement of an extra on a package; None if it is unknown."""
    from importlib import metadata  # noqa: PLC0415 - as above

    try:
        requirements = metadata.requires("aiozkqueue") or []
    except metadata.PackageNotFoundError:  # the package runs from its sources
        return None
    for requirement in requirements:
        package_spec, _, condition = (part.strip() for part in requirement.partition(";"))
        name = re.split(r"[^\w.-]", package_spec, maxsplit=1)[0]
        if _normal(name) == _normal(package) and any(f"'{part}'" in condition for part in extra.split(",")):
            return package_spec
    return None


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@contextmanager
def needs(extra: str) -> Generator[None]:
    """Import the packages of an extra in this block.

    Raises:
        MissingExtraError: a package is not installed, or its version lacks an imported name.
    """
    try:
        yield
    except MissingExtraError:
        raise
    except ImportError as error:
        module = (error.name or "").partition(".")[0]
        if module in {"", "aiozkqueue"}:  # a defect of this package, which no installation repairs
            raise
        if error.name == module and isinstance(error, ModuleNotFoundError):
            raise missing(module, extra) from error
        if find_spec(module) is None:  # an import of a submodule, without the package
            raise missing(module, extra) from error
        raise _unfit(module, extra, error) from error
