"""Defects in commit slots, which decide whether a multi was applied."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiozkqueue.queue.commit.slot import MultiFate, Sent, Slot
from aiozkqueue.testing.simulator import SimulatedClient
from aiozkqueue.zookeeper import Check, ConnectionLossError, Create, Delete, Operation, Result, SetData
from tests.simulation.mutations import mutation, rough
from tests.simulation.mutations.sending import is_item, is_slot, replace_where
from tests.simulation.stories.slots import (
    a_late_request_arrives_after_its_copy_was_refused,
    a_new_session_moves_to_a_lagging_server,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from aiozkqueue.queue.commit.slot import Sending
    from aiozkqueue.zookeeper import Node


@mutation()
def resend_without_a_commit_slot(patch: pytest.MonkeyPatch) -> None:
    replace_where(
        patch,
        lambda operation: is_slot(operation) and isinstance(operation, SetData),
        lambda operation: operation._replace(version=-1),
    )


@mutation()
def lost_commit_assumed_not_applied(patch: pytest.MonkeyPatch) -> None:
    async def not_applied(self: Slot, *_: object) -> MultiFate:
        self._version = None
        return MultiFate.NOT_APPLIED

    patch.setattr(Slot, "_read_verdict", not_applied)


@mutation()
def lost_reply_assumed_to_be_success(patch: pytest.MonkeyPatch) -> None:
    finish = Slot.finish

    async def careless(self: Slot, sending: Sending) -> Sent:
        reply = asyncio.ensure_future(sending.reply)
        try:
            await reply
        except ConnectionLossError:
            self._version = None
            return Sent(MultiFate.APPLIED)
        except Exception:  # noqa: BLE001 - the original method raises it again
            pass
        return await finish(self, sending._replace(reply=reply))

    patch.setattr(Slot, "finish", careless)


@mutation(rough)
def slot_read_from_the_slowest_server(patch: pytest.MonkeyPatch) -> None:
    read = SimulatedClient.read

    async def invalidate(self: SimulatedClient, path: str, *, generation: int | None = None) -> Node:
        if "/slot-" not in path:
            return await read(self, path, generation=generation)
        slowest = min(self.session._servers.servers, key=lambda server: server.tree.applied)
        return slowest.tree.read(path)

    patch.setattr(SimulatedClient, "read", invalidate)


@mutation(a_late_request_arrives_after_its_copy_was_refused)
def slot_not_sealed_after_a_lost_request(patch: pytest.MonkeyPatch) -> None:
    async def trusting(*_: object) -> MultiFate:
        return MultiFate.NOT_APPLIED

    patch.setattr(Slot, "_seal", trusting)


@mutation()
def commit_in_two_multis(patch: pytest.MonkeyPatch) -> None:
    multi = SimulatedClient.multi

    def split(
        self: SimulatedClient,
        operations: Sequence[Operation],
        *,
        generation: int | None = None,
        results: int | None = None,
    ) -> asyncio.Future[list[Result]]:
        takes = any(isinstance(operation, Delete) and is_item(operation) for operation in operations)
        puts = [operation for operation in operations if isinstance(operation, Create) and is_item(operation)]
        if not (takes and puts):
            return multi(self, operations, generation=generation, results=results)
        multi(self, puts, generation=generation)
        rest = [Check("/") if operation in puts else operation for operation in operations]
        return multi(self, rest, generation=generation, results=results)

    patch.setattr(SimulatedClient, "multi", split)


@mutation(a_new_session_moves_to_a_lagging_server)
def slot_read_without_a_sync(patch: pytest.MonkeyPatch) -> None:
    async def no_sync(*_: object) -> None: ...

    patch.setattr(SimulatedClient, "sync", no_sync)
