"""A highly available transactional queue on ZooKeeper, for asyncio.

This module has the names that most programs use. `aiozkqueue.errors` has all errors, and `aiozkqueue.admin` the
types of the administration API.
"""

from __future__ import annotations

from aiozkqueue import errors as errors  # as itself: type checkers know `aiozkqueue.errors` without its own import
from aiozkqueue.app import App
from aiozkqueue.arguments import Seconds
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
from aiozkqueue.operations.alter import Alteration
from aiozkqueue.operations.dead_letters import DeadLetters
from aiozkqueue.operations.message_state import Status
from aiozkqueue.queue.message import DeadLetter, Message
from aiozkqueue.queue.options import PutOptions
from aiozkqueue.queue.outcome import Outcome
from aiozkqueue.session.connect import connect
from aiozkqueue.session.connection_state import ConnectionState
from aiozkqueue.session.consumer import Consumer
from aiozkqueue.session.delivery import Delivery
from aiozkqueue.session.foreign_queue import CuratorQueue, ForeignQueue
from aiozkqueue.session.foreign_shards import CuratorShards
from aiozkqueue.session.leases import Lease, Leases
from aiozkqueue.session.listener import Listener
from aiozkqueue.session.listener_options import ListenerOptions
from aiozkqueue.session.middleware import Middleware
from aiozkqueue.session.queue import Queue
from aiozkqueue.session.run import run
from aiozkqueue.session.session import QueueSession
from aiozkqueue.session.transaction import Transaction
from aiozkqueue.zookeeper import Acl, Auth

__all__ = [
    "RETRY_SCHEDULE",
    "AccessDeniedError",
    "Acl",
    "All",
    "Alteration",
    "AnyOf",
    "App",
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
    "ListenerOptions",
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
