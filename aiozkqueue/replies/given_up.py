"""The answer to a call whose message is given up, as a part of the commit that gives it up."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from aiozkqueue.layout.replies import REPLY_TO, Failure, ReplyAddress
from aiozkqueue.queue.commit.write import OPERATION_WEIGHT
from aiozkqueue.queue.state.hooks import AttachedOp
from aiozkqueue.zookeeper import Create

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aiozkqueue.queue.commit.dispositions import Disposition
    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.zookeeper import Operation, ZooKeeperError

log: Final = logging.getLogger(__name__)

#: Maximum number of answers that are known to be refused; each belongs to a commit that is sent again.
REMEMBERED: Final = 1000


class GivenUpAnswers:
    """Creates the answers of one session. An answer that cannot be stored is left out: the end never fails for it."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._refused: dict[str, None] = {}

    def weight(self, claim: Claim, disposition: Disposition) -> int:
        """See `EndHook`."""
        return OPERATION_WEIGHT + len(self._answer(claim, disposition)) if self._address(claim) is not None else 0

    def attached_ops(
        self,
        claim: Claim,
        disposition: Disposition,
        moment: Callable[[], int],  # noqa: ARG002 - the answer has no time
    ) -> Iterable[AttachedOp]:
        """Return the create of the answer, if the message is of a call."""
        address = self._address(claim)
        if address is None or (path := address.failure_path(self._root)) in self._refused:
            return ()
        return (AttachedOp(Create(path, self._answer(claim, disposition)), self),)

    def repair(self, operation: Operation, error: ZooKeeperError) -> None:
        """Leave the answer out: the caller is gone, or an ACL refuses it."""
        log.info("answer %s to a call whose message is given up is dropped: %s", operation.path, error)
        self._refused[operation.path] = None
        while len(self._refused) > REMEMBERED:
            del self._refused[next(iter(self._refused))]

    def _address(self, claim: Claim) -> ReplyAddress | None:
        return ReplyAddress.parse(claim.header.headers.get(REPLY_TO))

    def _answer(self, claim: Claim, disposition: Disposition) -> bytes:
        return Failure(claim.id, disposition.answer).encode()
