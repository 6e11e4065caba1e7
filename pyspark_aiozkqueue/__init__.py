"""Where Spark finds the format ``aiozkqueue`` by itself: it looks into every top-level module named ``pyspark_*``."""

from __future__ import annotations

from aiozkqueue.spark.source import AiozkqueueDataSource as DefaultSource

__all__ = ["DefaultSource"]
