"""Defects in replies."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from aiozkqueue.replies.reply import Reply
from aiozkqueue.session.unit_of_work import UnitOfWork
from aiozkqueue.zookeeper import Create
from tests.simulation.mutations import mutation
from tests.simulation.mutations.sending import leave_out
from tests.simulation.workload import run

if TYPE_CHECKING:
    import pytest

    from aiozkqueue.zookeeper import Operation

with_replies = partial(run, feature="replies")


def _is_reply(operation: Operation) -> bool:
    return isinstance(operation, Create) and "/reply-" in operation.path


@mutation(with_replies)
def replies_not_stored(patch: pytest.MonkeyPatch) -> None:
    leave_out(patch, _is_reply)


@mutation(with_replies)
def answers_to_calls_that_are_given_up_not_stored(patch: pytest.MonkeyPatch) -> None:
    leave_out(patch, lambda operation: isinstance(operation, Create) and "/failed-" in operation.path)


@mutation(with_replies)
def reply_of_a_failed_handler_sent_by_its_rollback(patch: pytest.MonkeyPatch) -> None:
    rollback = UnitOfWork._release_claims

    def replying(self: UnitOfWork, *args: object) -> None:
        if isinstance(self._reply, Reply):
            create = self._reply._create
            sent = self.runtime.zookeeper.multi([create])
            asyncio.ensure_future(sent).add_done_callback(lambda done: done.cancelled() or done.exception())
        rollback(self, *args)  # type: ignore[arg-type]  # the arguments of the replaced call

    patch.setattr(UnitOfWork, "_release_claims", replying)
