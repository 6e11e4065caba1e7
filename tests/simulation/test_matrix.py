"""Every public coroutine, with a fault at every request and suspension, ends with a true result."""

from __future__ import annotations

import logging
from random import Random
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.testing.simulator import Fault
from tests.simulation.bundles_subjects import CHANGES, BundledQueue, changes_of
from tests.simulation.dialects_subjects import REFUSED
from tests.simulation.listed import said_to_raise
from tests.simulation.matrix import FAULTS, CallFault, call, slots_of, verdict
from tests.simulation.subjects import coroutines, without_a_subject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

#: Maximum number of combined faults at a request and a suspension. A coroutine with more gets a random selection.
MOST = 600
#: The same for calls on bundles, which take longer.
MOST_OF_BUNDLES = 200

#: Calls that expect an attempt without a delivery not to count. It counts if the outcome of its record is unknown.
ATTEMPTS = {"BundledQueue.return_recorded"}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_the_matrix_contains_every_public_coroutine() -> None:
    names = {f"{kind.__name__}.{name}" for kind, name in coroutines()}
    assert {
        "Queue.put",
        "Transaction.commit",
        "Delivery.reject",
        "Consumer.__anext__",
        "Listener.run",
        "_Connecting.__aexit__",
        "aiozkqueue.run",
        "QueueAdmin.release_ledger",
        "ForeignQueue.put_many",
        "CuratorQueue.remove",
        "CuratorShards.put",
    } <= names
    assert len(names) > 70
    assert not without_a_subject(), "add an object for their coroutines to tests.simulation.subjects"


def test_each_call_on_bundles_changes_them_in_its_own_way() -> None:
    names = [name for kind, name in coroutines() if kind is BundledQueue]
    assert {name: changes_of(call(BundledQueue, name, CallFault()).sent) for name in names} == CHANGES


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "name"), coroutines(), ids=[f"{kind.__name__}.{name}" for kind, name in coroutines()])
def test_every_call_ends_with_a_true_outcome_after_a_fault_at_any_await(
    kind: type | ModuleType, name: str, record_property: Callable[[str, object], None]
) -> None:
    full = f"{kind.__name__}.{name}"
    undisturbed, never = call(kind, name, CallFault()), call(kind, name, CallFault(), skip=True)
    if full in REFUSED:
        assert isinstance(undisturbed.error, REFUSED[full])
    else:
        assert undisturbed.error is None or isinstance(undisturbed.error, StopAsyncIteration)
    assert verdict(full, undisturbed, undisturbed, never) == []
    injections = [CallFault(request, fault) for request in range(1, undisturbed.requests + 1) for fault in FAULTS]
    injections += [
        CallFault(suspension=suspension, answered=answered)
        for suspension in range(1, undisturbed.suspensions + 1)
        for answered in (False, True)
    ]
    injections += [
        CallFault(number, fault, unknown=True)
        for number, request in enumerate(undisturbed.sent, 1)
        for fault in (Fault.LOST_BEFORE, Fault.LOST_AFTER)
        if slots_of(request) and full not in ATTEMPTS
    ]
    injections += [CallFault(request, closed=True) for request in range(1, undisturbed.requests + 1)]
    injections += [
        CallFault(suspension=suspension, closed=True) for suspension in range(1, undisturbed.suspensions + 1)
    ]
    both = [
        CallFault(request, fault, suspension, answered=(request + suspension) % 2 == 0)
        for request in range(1, undisturbed.requests + 1)
        for fault in FAULTS
        for suspension in range(1, undisturbed.suspensions + 3)  # a fault adds suspensions
    ]
    documented = said_to_raise(kind, name)
    most = MOST_OF_BUNDLES if kind is BundledQueue else MOST
    injections += both if len(both) <= most else Random(full).sample(both, most)
    wrong = []
    for injection in injections:
        wrong += [
            f"{injection}: {what}"
            for what in verdict(full, call(kind, name, injection), undisturbed, never, documented)
        ]
    record_property(
        "figures",
        f"{full}: {undisturbed.requests} requests, {undisturbed.suspensions} suspensions, {len(injections)} faults",
    )
    assert not wrong, f"{len(wrong)} of {len(injections)}:\n" + "\n".join(wrong[:15])
