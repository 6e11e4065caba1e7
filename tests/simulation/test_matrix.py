"""Every public coroutine, with a fault at every request and suspension: it ends, and its result is true."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.testing.simulator import Fault
from docsite.public import by_home, raised_by
from tests.simulation.dialects_subjects import REFUSED
from tests.simulation.matrix import Called, Strike, call
from tests.simulation.subjects import ABSORBING, GRADUAL, coroutines, without_a_subject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

FAULTS = [*Fault, None]
#: Maximum faults at a request and a suspension: a coroutine with more gets a random selection.
MOST = 600


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def said_to_raise(kind: type | ModuleType, name: str) -> set[str] | None:
    """Return the errors under ``Raises:``; None if the reference does not show them."""
    written = getattr(kind, name)
    member = by_home().get(f"{written.__module__}.{written.__qualname__}")
    return None if member is None else {raised.error for raised in raised_by(member)}


def verdict(name: str, struck: Called, undisturbed: Called, never: Called, told: set[str] | None = None) -> list[str]:
    """Return the faults of a call, given the errors ``told`` that the docstring names."""
    wrong = list(struck.troubles)
    error, state = struck.error, struck.state
    assert state is not None
    assert undisturbed.state is not None
    assert never.state is not None
    if error is None:
        expected = (undisturbed.state, never.state) if name in ABSORBING else (undisturbed.state,)
        if state not in expected and name not in GRADUAL:
            wrong.append(f"it returned, and left {state}, undisturbed it leaves {undisturbed.state}")
    elif isinstance(error, zq.NotCommittedError):
        if state != never.state and name not in GRADUAL:
            wrong.append(f"{error!r}, and it left {state}, never called it leaves {never.state}")
    elif not isinstance(error, asyncio.CancelledError | zq.QueueError | StopAsyncIteration):
        wrong.append(f"nobody foresees {error!r}")
    elif state not in (undisturbed.state, never.state) and name not in GRADUAL:
        wrong.append(f"{error!r}, and it left {state}, neither {undisturbed.state} nor {never.state}")
    for place in state:
        allowed = Counter(undisturbed.state[place]) | Counter(never.state[place])
        if name not in GRADUAL and Counter(state[place]) - allowed:
            wrong.append(f"{place} holds {state[place]}")
    if (
        isinstance(error, zq.QueueError)
        and told is not None
        and not told & {kind.__name__ for kind in type(error).mro()}
    ):
        wrong.append(f"its docstring says nothing of {error!r}")
    everywhere = Counter(state["jobs"] + state["dead"])
    wrong += [f"{token} is there {number} times" for token, number in everywhere.items() if number > 1]
    return wrong


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
    assert not without_a_subject(), "tell tests.simulation.subjects what their coroutines are called on"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "name"), coroutines(), ids=[f"{kind.__name__}.{name}" for kind, name in coroutines()])
def test_every_call_ends_with_a_true_outcome_after_a_fault_at_any_await(
    kind: type | ModuleType, name: str, record_property: Callable[[str, object], None]
) -> None:
    full = f"{kind.__name__}.{name}"
    undisturbed, never = call(kind, name, Strike()), call(kind, name, Strike(), skip=True)
    if full in REFUSED:
        assert isinstance(undisturbed.error, REFUSED[full])
    else:
        assert undisturbed.error is None or isinstance(undisturbed.error, StopAsyncIteration)
    assert verdict(full, undisturbed, undisturbed, never) == []
    strikes = [Strike(request, fault) for request in range(1, undisturbed.requests + 1) for fault in FAULTS]
    strikes += [
        Strike(suspension=suspension, answered=answered)
        for suspension in range(1, undisturbed.suspensions + 1)
        for answered in (False, True)
    ]
    both = [
        Strike(request, fault, suspension, answered=(request + suspension) % 2 == 0)
        for request in range(1, undisturbed.requests + 1)
        for fault in FAULTS
        for suspension in range(1, undisturbed.suspensions + 3)  # a fault adds suspensions
    ]
    told = said_to_raise(kind, name)
    strikes += both if len(both) <= MOST else Random(full).sample(both, MOST)
    wrong = []
    for strike in strikes:
        wrong += [f"{strike}: {what}" for what in verdict(full, call(kind, name, strike), undisturbed, never, told)]
    record_property(
        "figures",
        f"{full}: {undisturbed.requests} requests, {undisturbed.suspensions} suspensions, {len(strikes)} strikes",
    )
    assert not wrong, f"{len(wrong)} of {len(strikes)}:\n" + "\n".join(wrong[:15])
