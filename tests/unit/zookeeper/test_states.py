from __future__ import annotations

import asyncio
import itertools

import pytest

from aiozkqueue.zookeeper.interface import State
from aiozkqueue.zookeeper.states import StateMachine

_LEGAL = {
    (State.CONNECTING, State.CONNECTED),
    (State.CONNECTED, State.SUSPENDED),
    (State.SUSPENDED, State.CONNECTED),
    (State.SUSPENDED, State.LOST),
    (State.LOST, State.CONNECTED),
    (State.CONNECTING, State.FAILED),
    (State.SUSPENDED, State.FAILED),
    (State.LOST, State.FAILED),
    *((state, State.CLOSED) for state in State if state is not State.CLOSED),
}


@pytest.mark.parametrize(("source", "target"), list(itertools.product(State, State)))
def test_only_legal_state_transitions_are_made(source: State, target: State) -> None:
    machine = StateMachine()
    machine.state = source
    if (source, target) in _LEGAL:
        machine.move(target)
        assert machine.state is target
    else:
        with pytest.raises(RuntimeError, match=f"from {source.value} to {target.value}"):
            machine.move(target)
        assert machine.state is source


def test_a_session_generation_ends_only_when_the_session_is_lost() -> None:
    machine = StateMachine()
    machine.move(State.CONNECTED, new_session=True)
    machine.move(State.SUSPENDED)
    assert not machine.is_over(1)
    machine.move(State.LOST)
    assert machine.is_over(1)
    machine.move(State.CONNECTED, new_session=True)
    assert (machine.generation, machine.is_over(1), machine.is_over(2)) == (2, True, False)


def test_a_failing_state_listener_does_not_block_the_others() -> None:
    machine, reported = StateMachine(), list[tuple[State, int]]()

    def fails(_state: State, _generation: int) -> None:
        raise ValueError

    machine.on_change(fails)
    off = machine.on_change(lambda state, generation: reported.append((state, generation)))
    machine.move(State.CONNECTED, new_session=True)
    off()
    off()
    machine.move(State.CLOSED)
    assert reported == [(State.CONNECTED, 1)]


async def test_waiters_wake_at_the_next_transition_and_cancelled_ones_leave_nothing() -> None:
    machine = StateMachine()
    waiting = [asyncio.create_task(machine.changed()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    machine.move(State.CONNECTED)
    await asyncio.gather(*waiting[1:])
    assert waiting[0].cancelled()
