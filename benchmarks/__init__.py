"""Comparison of aiozkqueue and its peers: one run, one real server with fsync, taking turns.

``make bench``, or ``python -m benchmarks --help``. Each module has one subject: `raw` is the limit, with plain sockets;
the ``peers_*`` are other libraries; `ours` is aiozkqueue. `rounds` runs the cases in turns, `bars` has the targets, and
`report` and `chart` show the results. All figures apply to one machine; only ratios within a round carry over.
"""

from __future__ import annotations
