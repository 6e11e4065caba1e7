"""What is stored in ZooKeeper, and how: paths, names, and the bytes of every znode.

Pure functions and frozen values; no I/O, no clock, no asyncio. Imports nothing of the package but its errors.

A message's way through here: `IdSource` makes its id, `item_prefix` its name, `encode` the bytes of its znode under
`QueuePaths.items`. A consumer reads names with `item_id`, `item_sequence` and `ItemName.parse`, claims with a
`LockRecord`, reads with `decode`, and counts its hand-overs in an `AttemptRecord`. `QueueConfig` holds the `Policy`
that says how often and how soon. Names and bytes are pinned by tests, so that another language can follow them;
whatever another program wrote is read within bounds and refused with `MalformedError`.
"""

from __future__ import annotations

from .configuration import QueueConfig
from .envelope import EMPTY_HEADER, HEADER_LIMIT, MAGIC, DeadLetter, Header, decode, encode, encoded_size
from .errors import MalformedError
from .fields import LAST_MOMENT
from .filters import (
    All,
    AnyOf,
    Condition,
    Filter,
    Operator,
    OrderedEnum,
    Tags,
    TagValue,
    check_condition,
    check_tags,
    condition_digest,
    decode_tags,
    encode_tags,
    name_digest,
    tags_digest,
)
from .history import End, History, HistoryRecord, hour_end, hour_of, parse_hour, parse_record
from .ids import CLIENT_DIGITS, IdSource
from .lanes import (
    FIRST_PRIORITY,
    HOUR,
    LANE_END,
    LAST_PRIORITY,
    MOST_GENERATIONS,
    MOST_SHARDS,
    Tier,
    generation_of,
    is_lane,
    is_later,
    lane_of,
    later_of,
    priority_at,
    priority_of,
)
from .names import (
    ItemName,
    check_queue_name,
    id_at,
    item_group,
    item_id,
    item_prefix,
    item_sequence,
    key_hash,
    payload_hash,
    plain_prefix,
    scheduled_prefix,
    unscheduled_prefix,
)
from .paths import ClientPaths, QueuePaths, check_root, parse_due, parse_lock, parse_meta
from .policy import (
    LONGEST_DELAY,
    AtLeastOnce,
    Backoff,
    ConsumeOnce,
    ConsumeTimes,
    Exhausted,
    Exponential,
    Fixed,
    Policy,
    Schedule,
    Seconds,
    lifetime,
)
from .records import AttemptRecord, LockRecord
from .tokens import lease_token, leased_place

__all__ = [
    "CLIENT_DIGITS",
    "EMPTY_HEADER",
    "FIRST_PRIORITY",
    "HEADER_LIMIT",
    "HOUR",
    "LANE_END",
    "LAST_MOMENT",
    "LAST_PRIORITY",
    "LONGEST_DELAY",
    "MAGIC",
    "MOST_GENERATIONS",
    "MOST_SHARDS",
    "All",
    "AnyOf",
    "AtLeastOnce",
    "AttemptRecord",
    "Backoff",
    "ClientPaths",
    "Condition",
    "ConsumeOnce",
    "ConsumeTimes",
    "DeadLetter",
    "End",
    "Exhausted",
    "Exponential",
    "Filter",
    "Fixed",
    "Header",
    "History",
    "HistoryRecord",
    "IdSource",
    "ItemName",
    "LockRecord",
    "MalformedError",
    "Operator",
    "OrderedEnum",
    "Policy",
    "QueueConfig",
    "QueuePaths",
    "Schedule",
    "Seconds",
    "TagValue",
    "Tags",
    "Tier",
    "check_condition",
    "check_queue_name",
    "check_root",
    "check_tags",
    "condition_digest",
    "decode",
    "decode_tags",
    "encode",
    "encode_tags",
    "encoded_size",
    "generation_of",
    "hour_end",
    "hour_of",
    "id_at",
    "is_lane",
    "is_later",
    "item_group",
    "item_id",
    "item_prefix",
    "item_sequence",
    "key_hash",
    "lane_of",
    "later_of",
    "lease_token",
    "leased_place",
    "lifetime",
    "name_digest",
    "parse_due",
    "parse_hour",
    "parse_lock",
    "parse_meta",
    "parse_record",
    "payload_hash",
    "plain_prefix",
    "priority_at",
    "priority_of",
    "scheduled_prefix",
    "tags_digest",
    "unscheduled_prefix",
]
