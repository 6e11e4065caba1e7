"""The tools of operators: the types of `Queue.admin` and `QueueSession.admin`.

The tools themselves are properties of a queue and of a session. This module has their types, for annotations.
"""

from __future__ import annotations

from aiozkqueue.queue.admin.batch_writers import WriterInfo
from aiozkqueue.queue.admin.cleaning import Cleaned
from aiozkqueue.queue.admin.consumers import ConsumerInfo
from aiozkqueue.queue.admin.doctor.diagnosis import Diagnosis, EnsembleFacts, Finding, QueueFacts, Severity
from aiozkqueue.queue.admin.history_pins import Pin
from aiozkqueue.queue.admin.ledgers import LedgerInfo
from aiozkqueue.queue.admin.moves import Moves, MoveStatus
from aiozkqueue.queue.administration import QueueAdmin, SessionAdmin

__all__ = [
    "Cleaned",
    "ConsumerInfo",
    "Diagnosis",
    "EnsembleFacts",
    "Finding",
    "LedgerInfo",
    "MoveStatus",
    "Moves",
    "Pin",
    "QueueAdmin",
    "QueueFacts",
    "SessionAdmin",
    "Severity",
    "WriterInfo",
]
