"""Sticky queues, whose messages are taken by the node that put them: `QueueConfig.affinity`. Pure.

An item's name holds its node as the field ``-n<hash of the node's name>-``. Other versions keep and ignore it.
Consumers of a sticky queue select items by it. Messages that a node does not take for too long are reassigned (see
`aiozkqueue.queue.admin.affinity`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiozkqueue.layout import key_hash

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozkqueue.layout import QueueConfig

#: Characters of a node's hash: 60 bits.
_LETTERS: Final = 12


def node_hash(node: str) -> str:
    """Return the hash of a node's name, for item names. Raises: InvalidOptionError: the name is not valid Unicode."""
    return key_hash(node)[:_LETTERS]


def node_of(name: str) -> str | None:
    """Return the hash of the node in an item's name; None: any node may take the item."""
    # Fields are separated by dashes and contain none. The id is the last field.
    head, _, _ = name.rpartition("-i")
    _, mark, rest = head.partition("-n")
    return rest.partition("-")[0] if mark else None


def with_node(prefix: str, node: str) -> str:
    """Return an item's name up to its sequence with the node's field added, unless it has a node."""
    if node_of(prefix) is not None:
        return prefix
    head, _, rest = prefix.rpartition("-i")
    return f"{head}-n{node}-i{rest}"


def without_node(name: str) -> str:
    """Return an item's name without the node's field."""
    head, mark, rest = name.rpartition("-i")
    before, _, after = head.partition("-n")
    _, dash, fields = after.partition("-")
    return f"{before}{dash}{fields}{mark}{rest}"


def chooser(config: QueueConfig, node: str) -> Callable[[str], bool] | None:
    """Return the predicate on item names that selects this node's items; None: this node takes all items."""
    if config.affinity != "producer":
        return None
    own = (None, node)
    return lambda name: node_of(name) in own
