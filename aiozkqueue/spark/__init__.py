"""Queues in Spark: ``spark.read``, ``df.write``, ``readStream`` and ``writeStream`` with ``.format("aiozkqueue")``.

The modules: options, checked before any job runs (`options`); a session on its own thread for Spark's synchronous
readers and writers (`connection`); columns and Arrow batches (`columns`, `decoding`, `rows`); the batch reader and
writer (`reading`, `writing`); the source and sink of streams (`streaming`, `sink`); dead letters by decision
(`rejecting`). `audit/` (histories to files, and a report) and `transfer/` (files into queues, and queues into files)
use these modules, and also `folder` (publishes files exactly once), `files` (the file systems, with and without a JVM)
and `failures` (unwraps the errors of tasks). The package uses `queue/`, needs the extra ``spark``, and is imported only
on request. `docs/spark.md` has the guarantees.
"""

from __future__ import annotations

from aiozkqueue.extras import needs

with needs("spark"):
    from .source import AiozkqueueDataSource, register

__all__ = ["AiozkqueueDataSource", "register"]
