"""A highly available transactional queue on ZooKeeper, for asyncio.

This module has the names that most programs use. `aiozkqueue.errors` has all errors, and `aiozkqueue.admin` the
types of operators' tools.
"""

from __future__ import annotations

from aiozkqueue.errors import (
    RETRY_SCHEDULE,
    AccessDeniedError,
    ClaimLostError,
    ConflictError,
    ConnectionLostError,
    DuplicateKeyError,
    InvalidOptionError,
    MessageTooLargeError,
    NotCommittedError,
    OutcomeUnknownError,
    PayloadError,
    QueueError,
    QueueFullError,
    Reject,
    Retry,
    SessionClosedError,
    SessionExpiredError,
    TransactionTooLargeError,
)
from aiozkqueue.layout import (
    All,
    AnyOf,
    AtLeastOnce,
    Backoff,
    ConsumeOnce,
    ConsumeTimes,
    End,
    Exponential,
    Filter,
    Fixed,
    History,
    OrderedEnum,
    Policy,
    QueueConfig,
    Schedule,
)
from aiozkqueue.queue.admin.alter import Alteration
from aiozkqueue.queue.admin.dead_letters import DeadLetters
from aiozkqueue.queue.admin.message_state import Status
from aiozkqueue.queue.connect import connect
from aiozkqueue.queue.connection_state import ConnectionState
from aiozkqueue.queue.consumer import Consumer
from aiozkqueue.queue.delivery import Delivery
from aiozkqueue.queue.foreign_queue import CuratorQueue, ForeignQueue
from aiozkqueue.queue.foreign_shards import CuratorShards
from aiozkqueue.queue.leases import Lease, Leases
from aiozkqueue.queue.listener import Listener
from aiozkqueue.queue.message import DeadLetter, Message
from aiozkqueue.queue.middleware import Middleware
from aiozkqueue.queue.options import PutOptions, Seconds
from aiozkqueue.queue.outcome import Outcome
from aiozkqueue.queue.queue import Queue
from aiozkqueue.queue.run import run
from aiozkqueue.queue.session import QueueSession
from aiozkqueue.queue.transaction import Transaction
from aiozkqueue.zookeeper import Acl, Auth

__all__ = [
    "RETRY_SCHEDULE",
    "AccessDeniedError",
    "Acl",
    "All",
    "Alteration",
    "AnyOf",
    "AtLeastOnce",
    "Auth",
    "Backoff",
    "ClaimLostError",
    "ConflictError",
    "ConnectionLostError",
    "ConnectionState",
    "ConsumeOnce",
    "ConsumeTimes",
    "Consumer",
    "CuratorQueue",
    "CuratorShards",
    "DeadLetter",
    "DeadLetters",
    "Delivery",
    "DuplicateKeyError",
    "End",
    "Exponential",
    "Filter",
    "Fixed",
    "ForeignQueue",
    "History",
    "InvalidOptionError",
    "Lease",
    "Leases",
    "Listener",
    "Message",
    "MessageTooLargeError",
    "Middleware",
    "NotCommittedError",
    "OrderedEnum",
    "Outcome",
    "OutcomeUnknownError",
    "PayloadError",
    "Policy",
    "PutOptions",
    "Queue",
    "QueueConfig",
    "QueueError",
    "QueueFullError",
    "QueueSession",
    "Reject",
    "Retry",
    "Schedule",
    "Seconds",
    "SessionClosedError",
    "SessionExpiredError",
    "Status",
    "Transaction",
    "TransactionTooLargeError",
    "connect",
    "run",
]
