"""The audit moves records of ended messages from the histories of queues to Parquet files, and reports on them.

The modules: the progress of a run (`state`), its steps (`moving`), the work of its tasks (`records`), and the report on
the files (`report`). The audit uses the parts of the format in `spark/` and `queue/`. The command is in `cli/`.
"""

from __future__ import annotations

from .moving import Moved, move
from .report import Figures, Percentiles, Reason, Report, Span, report

__all__ = ["Figures", "Moved", "Percentiles", "Reason", "Report", "Span", "move", "report"]
