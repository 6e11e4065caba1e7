"""The audit: records of ended messages, moved from the queues' histories to Parquet files, and a report on them.

The modules: the progress of a run (`state`), its steps (`moving`), the work of its tasks (`records`), and the report on
the files (`report`). It uses the parts of the format in `spark/` and `queue/`; the command is in `cli/`.
"""

from __future__ import annotations

from .moving import Moved, move
from .report import Figures, Percentiles, Reason, Report, Span, report

__all__ = ["Figures", "Moved", "Percentiles", "Reason", "Report", "Span", "move", "report"]
