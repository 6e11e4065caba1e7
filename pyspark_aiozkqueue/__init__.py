"""Makes the format ``aiozkqueue`` available to Spark, which imports every top-level module named ``pyspark_*``.

If the import of such a module fails, Spark ignores the module and reports that the format does not exist. With an
unsupported version of PySpark, this module therefore still provides the format. Its error names the installed version
and the supported versions.
"""

from __future__ import annotations

from aiozkqueue.errors import MissingExtraError

__all__ = ["DefaultSource"]

try:
    from aiozkqueue.spark.source import AiozkqueueDataSource as DefaultSource
except MissingExtraError as error:
    from pyspark_aiozkqueue.unfit import refusing

    DefaultSource = refusing(error)  # type: ignore[assignment,misc]  # every use of it raises the error
