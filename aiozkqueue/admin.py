"""The types of the administration API, `Queue.admin` and `QueueSession.admin`, and of the reports of a queue.

The API itself consists of properties of a queue and of a session. This module has their types, and those that
`Queue.stats`, `Queue.state` and `Queue.history` return, for annotations.
"""

from __future__ import annotations

from aiozkqueue.layout import HistoryRecord
from aiozkqueue.operations.batch_writers import WriterInfo
from aiozkqueue.operations.cleaning import Cleaned
from aiozkqueue.operations.consumers import ConsumerInfo
from aiozkqueue.operations.doctor.diagnosis import Diagnosis, Finding, Severity
from aiozkqueue.operations.doctor.facts import EnsembleFacts, QueueFacts
from aiozkqueue.operations.history_pins import Pin
from aiozkqueue.operations.ledgers import LedgerInfo
from aiozkqueue.operations.message_state import MessageState, Process
from aiozkqueue.operations.moves import Moves, MoveStatus
from aiozkqueue.operations.stats import QueueStats
from aiozkqueue.session.administration import QueueAdmin, SessionAdmin

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
