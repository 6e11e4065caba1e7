"""Queues in Spark: ``spark.read``, ``df.write``, ``readStream`` and ``writeStream`` with ``.format("aiozkqueue")``.

- `source` is the format, and `options` are its options, checked before any job runs.
- `connection` is a session on its own thread for Spark's synchronous readers and writers. `orphans` ends a process of
  Spark whose JVM has ended, and `termination` stops the source of a stream when its query ends.
- `columns` has the columns of a read, `decoding` converts values, `batching` and `bundle_arrays` make Arrow batches,
  and `rows` turns Arrow batches into messages.
- `reading` reads a queue. `writing` puts rows, with a `partition_writer` for each task and a `row_digest` to compare
  attempts.
- `streaming` reads a queue as a stream: `offsets` are its positions, `dividing` makes the shares of tasks, and
  `background` works on the ledger while tasks read. `rejecting` writes dead letters by decision.
- `sink` writes a stream into a queue; `order` tells its attempts apart.
- `audit/` (histories to files, and a report) and `transfer/` (files into queues, and queues into files) use these
  modules, and also `folder` (publishes files exactly once), `files` (the file systems, with and without a JVM) and
  `failures` (unwraps the errors of tasks).

The package uses `batches/`, `operations/`, `queue/` and `session/`, needs the extra ``spark``, and is imported only on
request. `docs/spark.md` has the guarantees.
"""

from __future__ import annotations

from aiozkqueue.extras import needs

with needs("spark"):
    from .source import AiozkqueueDataSource, register

__all__ = ["AiozkqueueDataSource", "register"]
