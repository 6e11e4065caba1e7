"""Where Spark finds the format ``aiozkqueue`` by itself: it looks into every top-level module named ``pyspark_*``.

Spark ignores a module of these that cannot be imported, and then says that there is no such format. So with a PySpark
that does not fit, the format is there all the same, and its error says which version is found and which is needed.
"""

from __future__ import annotations

from aiozkqueue.errors import MissingExtraError

__all__ = ["DefaultSource"]

try:
    from aiozkqueue.spark.source import AiozkqueueDataSource as DefaultSource
except MissingExtraError as error:
    from pyspark_aiozkqueue.unfit import refusing

    DefaultSource = refusing(error)  # type: ignore[assignment,misc]  # it refuses whatever it is asked for
