"""The reply of a handler, as a part of its commit. A reply that cannot be stored never makes the commit fail."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from aiozkqueue.queue.commit.write import OPERATION_WEIGHT, Part
from aiozkqueue.zookeeper import Create, NoNodeError

if TYPE_CHECKING:
    from aiozkqueue.queue.commit.write import Composition
    from aiozkqueue.zookeeper import Operation, ZooKeeperError

log: Final = logging.getLogger(__name__)


class Reply(Part):
    """The create of one reply, which is left out if the caller has gone."""

    __slots__ = ("_create", "_left_out")

    def __init__(self, path: str, data: bytes) -> None:
        super().__init__(OPERATION_WEIGHT + len(data))
        self._create = Create(path, data)
        self._left_out = False

    def compose(self, composition: Composition) -> None:
        """Add the create."""
        if not self._left_out:
            composition.operations.append(self._create)

    def repair(self, operation: Operation, error: ZooKeeperError) -> None:
        """Leave the reply out."""
        self._left_out = True
        if isinstance(error, NoNodeError):
            log.info("reply %s: the session of the caller has ended; the reply is dropped", operation.path)
        else:
            log.warning("reply %s is dropped: %s", operation.path, error)
