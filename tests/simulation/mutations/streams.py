"""Defects in streams and their ledger."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiozkqueue.batches import ledger, making
from aiozkqueue.batches.bundled import locking
from aiozkqueue.batches.epoch import Epoch
from aiozkqueue.batches.ledger import Ledger
from aiozkqueue.batches.manifests import Manifests
from aiozkqueue.batches.read_marks import Evidence
from aiozkqueue.operations.ledger_pages import Manifest
from aiozkqueue.zookeeper import Check, Create, SetData
from tests.simulation.mutations import mutation
from tests.simulation.mutations.sending import replace_where
from tests.simulation.stories.streams import a_driver_is_replaced_while_it_gives_its_prepared_batch_back
from tests.simulation.workload import run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    import pytest

    from aiozkqueue.zookeeper import Operation

of_streams = partial(run, feature="streams")


@mutation(of_streams)
def replaced_driver_not_fenced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Epoch, "check", lambda self: Check(self.path))


@mutation(of_streams)
def batch_without_locks(patch: pytest.MonkeyPatch) -> None:
    change = Epoch.change

    async def without_locks(
        self: Epoch, operations: Sequence[Operation], done: Callable[[], Awaitable[bool]] | None = None
    ) -> None:
        kept = [
            operation for operation in operations if not (isinstance(operation, Create) and "/locks/" in operation.path)
        ]
        await change(self, kept, done)

    patch.setattr(Epoch, "change", without_locks)


@mutation(of_streams)
def batch_acknowledged_early(patch: pytest.MonkeyPatch) -> None:
    acknowledge = Ledger.acknowledge

    async def too_much(self: Ledger, number: int, _: str | None = None) -> int:
        return await acknowledge(self, number + 1)

    patch.setattr(Ledger, "acknowledge", too_much)


@mutation(of_streams)
def batch_removed_without_a_mark(patch: pytest.MonkeyPatch) -> None:
    def is_mark(operation: Operation) -> bool:
        return isinstance(operation, SetData) and "/batch-" in operation.path and Manifest.decode(operation.data).done

    def without_mark(operation: SetData) -> SetData:
        return operation._replace(data=Manifest.decode(operation.data)._replace(done=False).encode())

    replace_where(patch, is_mark, without_mark)


@mutation(of_streams)
def acknowledged_batch_released_instead_of_removed(patch: pytest.MonkeyPatch) -> None:
    async def nothing(_: Ledger) -> int:
        return 0

    patch.setattr(Ledger, "finish", nothing)


@mutation(of_streams)
def unread_batch_acknowledged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ledger, "weigh", lambda *_: Evidence.READ)


@mutation(of_streams)
def requested_batch_given_back(patch: pytest.MonkeyPatch) -> None:
    release_unsealed, read = Ledger.release_unsealed, Manifests.read

    async def too_much(self: Ledger) -> int:
        async def unsealed(number: int) -> Manifest:
            state = await read(self._manifests, number)
            return state if state.done else state._replace(messages=None)

        with patch.context() as patched:
            patched.setattr(self._manifests, "read", unsealed)
            return await release_unsealed(self)

    patch.setattr(Ledger, "release_unsealed", too_much)


@mutation(a_driver_is_replaced_while_it_gives_its_prepared_batch_back)
def prepared_batch_given_back_without_a_fence(patch: pytest.MonkeyPatch) -> None:
    release_unsealed = Ledger.release_unsealed

    async def unfenced(self: Ledger) -> int:
        with patch.context() as patched:
            patched.setattr(self._epoch, "check", lambda: Check(self._epoch.path))
            return await release_unsealed(self)

    patch.setattr(Ledger, "release_unsealed", unfenced)


in_bundles = partial(run, feature="streamed_bundles")


@mutation(in_bundles)
def bundle_locked_without_its_record(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        making, "locking", lambda *args: [operation for operation in locking(*args) if "/meta/" not in operation.path]
    )


@mutation(in_bundles)
def messages_of_a_held_bundle_left_unlocked(patch: pytest.MonkeyPatch) -> None:
    change = Epoch.change

    async def unlocked(
        self: Epoch, operations: Sequence[Operation], done: Callable[[], Awaitable[bool]] | None = None
    ) -> None:
        if isinstance(operations[0] if operations else None, SetData):  # a page whose bundle becomes single items
            operations = [
                operation
                for operation in operations
                if not (isinstance(operation, Create) and "/locks/" in operation.path)
            ]
        await change(self, operations, done)

    patch.setattr(Epoch, "change", unlocked)
