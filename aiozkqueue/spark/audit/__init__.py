"""The audit: what has become of messages, moved from the queues' histories to Parquet files, and told in figures.

The modules: how far a run has come (`state`), its steps (`moving`), what its tasks do (`records`), and the report
on what the files hold (`report`). It stands on the format's parts beside it and on `queue/`; the command is in `cli/`.
"""

from __future__ import annotations

from .moving import Moved, move
from .report import Figures, Percentiles, Reason, Report, Span, report

__all__ = ["Figures", "Moved", "Percentiles", "Reason", "Report", "Span", "move", "report"]
