"""The module in which Spark finds the format ``aiozkqueue``: it imports every top-level module named ``pyspark_*``.

Spark ignores such a module if its import fails, and then reports that there is no such format. With an unsupported
version of PySpark, the format therefore still exists, and its error names the version found and the version needed.
"""

from __future__ import annotations

from aiozkqueue.errors import MissingExtraError

__all__ = ["DefaultSource"]

try:
    from aiozkqueue.spark.source import AiozkqueueDataSource as DefaultSource
except MissingExtraError as error:
    from pyspark_aiozkqueue.unfit import refusing

    DefaultSource = refusing(error)  # type: ignore[assignment,misc]  # it refuses whatever it is asked for
