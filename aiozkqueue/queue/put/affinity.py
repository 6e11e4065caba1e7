"""Queues whose messages are taken by the node that put them: `QueueConfig.affinity`. Pure.

A name says which node its message is of: ``-n<hash of the node's name>-``, a field that other versions keep and ignore.
Consumers of such a queue choose by it. What a node leaves lying for too long is handed on (see `handing_on`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiozkqueue.layout import key_hash

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozkqueue.layout import QueueConfig

#: Letters of the hash that stands for a node: 60 bits.
_LETTERS: Final = 12


def node_hash(node: str) -> str:
    """What stands for a node in the names of its messages. Raises: InvalidOptionError: no valid Unicode."""
    return key_hash(node)[:_LETTERS]


def node_of(name: str) -> str | None:
    """The hash of the node that an item's name tells of; None: any node may take it."""
    # Fields stand between dashes and hold none, and the id is the last of them.
    head, _, _ = name.rpartition("-i")
    _, found, rest = head.partition("-n")
    return rest.partition("-")[0] if found else None


def with_node(prefix: str, node: str) -> str:
    """An item's name up to its sequence, with the node's field; as it is when it has one."""
    if node_of(prefix) is not None:
        return prefix
    head, _, rest = prefix.rpartition("-i")
    return f"{head}-n{node}-i{rest}"


def without_node(name: str) -> str:
    """An item's name without the node's field."""
    head, mark, rest = name.rpartition("-i")
    before, _, after = head.partition("-n")
    _, dash, fields = after.partition("-")
    return f"{before}{dash}{fields}{mark}{rest}"


def chooser(config: QueueConfig, node: str) -> Callable[[str], bool] | None:
    """Return what tells by an item's name whether this node takes it; None: it takes all."""
    if config.affinity != "producer":
        return None
    own = (None, node)
    return lambda name: node_of(name) in own
