"""Defects in the settlement of batches."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiozkqueue.errors import Reject
from aiozkqueue.session import batch
from aiozkqueue.session.batch import BatchWork
from aiozkqueue.session.batch_listener import BatchListener
from aiozkqueue.session.unit_of_work import UnitOfWork
from tests.simulation.mutations import mutation
from tests.simulation.workload import run

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest

    from aiozkqueue.queue.claim.dispatcher import ClaimDispatcher
    from aiozkqueue.queue.state.claim import Claim

with_batches = partial(run, feature="batch handlers")


@mutation(with_batches)
def failed_messages_of_a_batch_committed(patch: pytest.MonkeyPatch) -> None:
    def keep(self: UnitOfWork, claims: Iterable[Claim]) -> None:
        del self, claims

    patch.setattr(UnitOfWork, "detach", keep)


@mutation(with_batches)
def puts_of_a_batch_kept_when_all_messages_fail(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(UnitOfWork, "drop_puts", lambda _: None)


@mutation(with_batches)
def puts_of_a_batch_sent_before_its_commit(patch: pytest.MonkeyPatch) -> None:
    refusal = batch._try_commit

    async def in_two(work: UnitOfWork) -> object:
        first = UnitOfWork(work.runtime, work.runtime.ids.next())
        for put in work._puts:
            first.add_put(put)
        work.drop_puts()
        await refusal(first)
        return await refusal(work)

    patch.setattr(batch, "_try_commit", in_two)


@mutation(with_batches)
def failed_messages_of_a_batch_dropped(patch: pytest.MonkeyPatch) -> None:
    """The failed messages are removed with the others, as if the commit included them."""
    settle = BatchWork._settle

    async def without(self: BatchWork, failed: list[tuple[Claim, Exception]]) -> None:
        rejected = [failure for failure in failed if isinstance(failure[1], Reject)]
        await settle(self, [failure for failure in failed if failure not in rejected])

    patch.setattr(BatchWork, "_settle", without)


@mutation(with_batches)
def batches_collected_without_a_limit(patch: pytest.MonkeyPatch) -> None:
    collect = BatchListener._collect

    async def twice(self: BatchListener[bytes], dispatcher: ClaimDispatcher) -> list[Claim]:
        return [*await collect(self, dispatcher), *await collect(self, dispatcher)]

    patch.setattr(BatchListener, "_collect", twice)
