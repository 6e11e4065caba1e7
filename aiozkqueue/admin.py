"""The types of operators' tools, `Queue.admin` and `QueueSession.admin`, and of what a queue reports.

The tools themselves are properties of a queue and of a session. This module has their types, and those that
`Queue.stats`, `Queue.state` and `Queue.history` return, for annotations.
"""

from __future__ import annotations

from aiozkqueue.layout import HistoryRecord
from aiozkqueue.queue.admin.batch_writers import WriterInfo
from aiozkqueue.queue.admin.cleaning import Cleaned
from aiozkqueue.queue.admin.consumers import ConsumerInfo
from aiozkqueue.queue.admin.doctor.diagnosis import Diagnosis, EnsembleFacts, Finding, QueueFacts, Severity
from aiozkqueue.queue.admin.history_pins import Pin
from aiozkqueue.queue.admin.ledgers import LedgerInfo
from aiozkqueue.queue.admin.message_state import MessageState, Process
from aiozkqueue.queue.admin.moves import Moves, MoveStatus
from aiozkqueue.queue.admin.stats import QueueStats
from aiozkqueue.queue.administration import QueueAdmin, SessionAdmin

__all__ = [
    "Cleaned",
    "ConsumerInfo",
    "Diagnosis",
    "EnsembleFacts",
    "Finding",
    "HistoryRecord",
    "LedgerInfo",
    "MessageState",
    "MoveStatus",
    "Moves",
    "Pin",
    "Process",
    "QueueAdmin",
    "QueueFacts",
    "QueueStats",
    "SessionAdmin",
    "Severity",
    "WriterInfo",
]
