"""Comparison of aiozkqueue and its peers, in turns, in one run on one real server with fsync.

``make bench``, or ``python -m benchmarks --help``. Each module has one subject: `raw` measures the limit with plain
sockets, the ``peers_*`` modules measure other libraries, and `ours` measures aiozkqueue. `rounds` runs the cases in
turns, `bars` has the targets, and `report` and `chart` show the results. All figures apply to one machine; only the
ratios within a round can be compared across machines.
"""

from __future__ import annotations
