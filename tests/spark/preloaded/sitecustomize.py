"""Python imports this module at its start. It lets Spark's daemons import the format before they fork workers.

Spark starts a process for each step of a read or a write: to create the source, to plan, to write, to commit. Each is a
fork of a daemon, which by itself imports nothing of the format, so each process would spend a second on the imports.
"""

from __future__ import annotations

import sys
from importlib import import_module

if "pyspark.daemon" in sys.orig_argv:
    import_module("aiozkqueue.spark")
