"""Queues in Spark: ``spark.read``, ``df.write``, ``readStream`` and ``writeStream`` with ``.format("aiozkqueue")``.

The modules: options, checked before any job runs (`options`); a session on its own thread for Spark's synchronous
readers and writers (`connection`); columns and Arrow batches (`columns`, `decoding`, `rows`); the batch reader and
writer (`reading`, `writing`); the source and sink of streams (`streaming`, `sink`). On these stand `audit/` (histories
to files, and a report) and `transfer/` (files into queues, and queues into files), with `folder` (what appears in a
folder, once) and `failures` (errors of tasks, told plainly). All of it stands on `queue/`, needs the extra ``spark``,
and nothing imports it but those who want it. `docs/spark.md` has the guarantees.
"""

from __future__ import annotations

from aiozkqueue.extras import needs

with needs("spark"):
    from .source import AiozkqueueDataSource, register

__all__ = ["AiozkqueueDataSource", "register"]
