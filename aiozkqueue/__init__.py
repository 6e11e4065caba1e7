"""A highly available transactional queue on ZooKeeper, for asyncio."""

from __future__ import annotations

from aiozkqueue.errors import (
    RETRY_SCHEDULE,
    AccessDeniedError,
    AlreadyExistsError,
    BlockedLoopWarning,
    CheckpointError,
    ClaimLostError,
    ConfigConflictError,
    ConflictError,
    ConnectionLostError,
    DirectPutWarning,
    DuplicateKeyError,
    ImplicitSettleWarning,
    InvalidNameError,
    InvalidOptionError,
    InvalidScheduleError,
    ItemNotEmptyError,
    MessageTooLargeError,
    MissingExtraError,
    NotCommittedError,
    NotFoundError,
    OutcomeUnknownError,
    PartlyDeniedError,
    PayloadError,
    QueueError,
    QueueFullError,
    Reject,
    Retry,
    SessionClosedError,
    SessionExpiredError,
    TransactionClosedError,
    TransactionTooLargeError,
    UncommittedWarning,
    UnknownMoveError,
    UnreadBatchError,
    WrongLoopError,
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
    HistoryRecord,
    OrderedEnum,
    Policy,
    QueueConfig,
    Schedule,
)
from aiozkqueue.queue.admin.alter import Alteration
from aiozkqueue.queue.admin.dead_letters import DeadLetters
from aiozkqueue.queue.admin.message_state import MessageState, Process, Status
from aiozkqueue.queue.admin.stats import QueueStats
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
from aiozkqueue.queue.runtime.clock import Clock
from aiozkqueue.queue.session import QueueSession
from aiozkqueue.queue.transaction import Transaction
from aiozkqueue.zookeeper import Acl, Auth

__all__ = [
    "RETRY_SCHEDULE",
    "AccessDeniedError",
    "Acl",
    "All",
    "AlreadyExistsError",
    "Alteration",
    "AnyOf",
    "AtLeastOnce",
    "Auth",
    "Backoff",
    "BlockedLoopWarning",
    "CheckpointError",
    "ClaimLostError",
    "Clock",
    "ConfigConflictError",
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
    "DirectPutWarning",
    "DuplicateKeyError",
    "End",
    "Exponential",
    "Filter",
    "Fixed",
    "ForeignQueue",
    "History",
    "HistoryRecord",
    "ImplicitSettleWarning",
    "InvalidNameError",
    "InvalidOptionError",
    "InvalidScheduleError",
    "ItemNotEmptyError",
    "Lease",
    "Leases",
    "Listener",
    "Message",
    "MessageState",
    "MessageTooLargeError",
    "Middleware",
    "MissingExtraError",
    "NotCommittedError",
    "NotFoundError",
    "OrderedEnum",
    "Outcome",
    "OutcomeUnknownError",
    "PartlyDeniedError",
    "PayloadError",
    "Policy",
    "Process",
    "PutOptions",
    "Queue",
    "QueueConfig",
    "QueueError",
    "QueueFullError",
    "QueueSession",
    "QueueStats",
    "Reject",
    "Retry",
    "Schedule",
    "Seconds",
    "SessionClosedError",
    "SessionExpiredError",
    "Status",
    "Transaction",
    "TransactionClosedError",
    "TransactionTooLargeError",
    "UncommittedWarning",
    "UnknownMoveError",
    "UnreadBatchError",
    "WrongLoopError",
    "connect",
    "run",
]
