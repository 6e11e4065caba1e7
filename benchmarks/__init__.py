"""Ours and the peers, side by side: one run, one real server with fsync, in turns.

``make bench``, or ``python -m benchmarks --help``. One module a subject: `raw` is the ceiling by plain sockets, the
``peers_*`` are what else there is, `ours` the library; `rounds` runs them in turns, `bars` says what must be reached,
`report` and `chart` tell it. Every figure is one of this machine; what travels is the ratio of two in the same round.
"""

from __future__ import annotations
