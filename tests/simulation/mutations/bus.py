"""Defects in the bus."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from aiozkqueue.bus import bus, events
from aiozkqueue.queue.commit import dispositions, end_claims
from aiozkqueue.zookeeper import Check
from tests.simulation.mutations import mutation
from tests.simulation.mutations.sending import leave_out
from tests.simulation.workload import run

if TYPE_CHECKING:
    import pytest

    from aiozkqueue.queue.commit.dispositions import Disposition
    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.zookeeper import Operation

of_buses = partial(run, feature="bus")


@mutation(of_buses)
def post_does_not_check_the_groups(patch: pytest.MonkeyPatch) -> None:
    leave_out(patch, lambda operation: "/.buses/" in operation.path and isinstance(operation, Check))


@mutation(of_buses)
def finished_subscribers_not_recorded(patch: pytest.MonkeyPatch) -> None:
    guard = dispositions.guard

    def forgetful(claim: Claim, disposition: Disposition) -> Operation:
        return guard(claim, disposition._replace(rewrite=None))

    patch.setattr(end_claims, "guard", forgetful)


@mutation(of_buses)
def finished_subscribers_called_again(patch: pytest.MonkeyPatch) -> None:
    handle = bus.Bus._handle

    async def again(self: bus.Bus[Any], delivery: Any, group: str | None) -> None:
        delivery._content = delivery._content._replace(header=_forgotten(delivery._content.header))
        await handle(self, delivery, group)

    patch.setattr(bus.Bus, "_handle", again)


def _forgotten(header: Any) -> Any:
    """Return the header without its list of finished subscribers."""
    return replace(header, headers={name: text for name, text in header.headers.items() if name != events.DONE})
