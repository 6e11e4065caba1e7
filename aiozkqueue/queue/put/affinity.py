"""Sticky queues, whose messages are taken by the node that put them: `QueueConfig.affinity`. Pure.

An item's name contains its node as the field ``-n<hash of the node's name>-``. Other versions keep and ignore it.
Consumers of a sticky queue select items by it. Messages that a node does not take for too long are reassigned (see
`aiozkqueue.operations.affinity`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiozkqueue.layout import item_node, key_hash, with_field

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozkqueue.layout import StoredConfig

#: Characters of a node's hash: 60 bits.
_LETTERS: Final = 12


def node_hash(node: str) -> str:
    """Return the hash of a node's name, for item names. Raises: InvalidOptionError: the name is not valid Unicode."""
    return key_hash(node)[:_LETTERS]


def with_node(prefix: str, node: str) -> str:
    """Return an item's name up to its sequence with the node's field added, unless it has a node."""
    return with_field(prefix, f"n{node}") if item_node(prefix) is None else prefix


def chooser(config: StoredConfig, node: str) -> Callable[[str], bool] | None:
    """Return the predicate on item names that selects this node's items; None: this node takes all items."""
    if config.affinity != "producer":
        return None
    own = (None, node)
    return lambda name: item_node(name) in own
