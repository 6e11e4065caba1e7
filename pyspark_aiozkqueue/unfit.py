"""The format for an unsupported version of PySpark. It raises an error that explains the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from aiozkqueue.errors import MissingExtraError


def refusing(error: MissingExtraError) -> type[DataSource]:
    """Return a format that raises this error when Spark uses it."""

    class RefusingSource(DataSource):
        """Raises: MissingExtraError."""

        def __init__(self, options: dict[str, str]) -> NoReturn:  # noqa: ARG002 - Spark's signature
            raise type(error)(*error.args, name=error.name)

        @classmethod
        def name(cls) -> str:
            """Return the name of the format."""
            return "aiozkqueue"

    return RefusingSource
