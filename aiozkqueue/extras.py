"""What the extras of the package bring: whoever imports it and has not installed it is told how to."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from aiozkqueue.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Generator


def missing(module: str, extra: str) -> MissingExtraError:
    """Return the error for a module that is not installed, which an extra brings (or several: ``"spark,embedded"``)."""
    return MissingExtraError(f"{module} is not installed: pip install 'aiozkqueue[{extra}]'", name=module)


@contextmanager
def needs(extra: str) -> Generator[None]:
    """Import in this block what an extra brings.

    Raises:
        MissingExtraError: a module of it is not installed.
    """
    try:
        yield
    except MissingExtraError:
        raise
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module in {"", "aiozkqueue"}:  # a mistake of ours, which no installation mends
            raise
        raise missing(module, extra) from error
