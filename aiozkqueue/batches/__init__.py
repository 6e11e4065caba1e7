"""Batches for Spark: repeatable batches from a queue, and batches to a queue that become visible as a whole.

From a queue, a `ledger.Ledger` holds batches. It is made of these parts, and each uses only those before it:

``epoch``              decides which process may change the ledger, and makes each change exactly once
``bundled``            locks and ends bundles
``manifests``          the batches and their pages
``acknowledge``        ends the messages of a batch
``making``             fills a batch, from the ``backlog`` and the ``upcoming`` items
``preparing``          fills the next batch while tasks read the previous one
``attempts``           counts the attempts at a batch, and divides one that keeps failing
``ledger``             hands batches out; ``records`` is its state, and ``read_marks`` shows which messages were read

``rejections`` marks messages as dead letters, and ``unreadable`` has those that can be neither read nor removed.

To a queue, ``staging`` puts batches, and ``ended_writes`` refuses late tasks of batches that have ended.
"""
