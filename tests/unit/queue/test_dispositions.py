"""The end of a hold without a commit follows the queue's policy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import aiozkqueue as zq
from aiozkqueue.queue.commit.dispositions import Disposition, release_disposition
from aiozkqueue.queue.state.claim import Claim, EphemeralBudget
from aiozkqueue.session.failures import describe

if TYPE_CHECKING:
    from aiozkqueue.queue.state.queue_state import QueueState


def claim(policy: zq.Policy, attempt: int, *, delivered: bool = True, retries: int = 0) -> Claim:
    state = cast("QueueState", SimpleNamespace(snapshot=SimpleNamespace(policy=policy), name="jobs"))
    made = Claim(state, "items/item-i1-0000000000", "1", "", "", "", 1, EphemeralBudget({}), 0)
    made.attempts, made.recorded, made.delivered, made.retries = attempt, True, delivered, retries
    return made


def test_a_release_without_a_delay_uses_the_backoff_of_the_policy() -> None:
    policy = zq.AtLeastOnce(backoff=zq.Schedule([1, 5]))
    assert release_disposition(claim(policy, 1), None, "why") == Disposition("release", delay=1, error="why")
    assert release_disposition(claim(policy, 2), None, "why") == Disposition("release", delay=5, error="why")
    assert release_disposition(claim(policy, 9), None, "why") == Disposition("release", delay=5, error="why")


@given(st.floats(0, 1e6))
def test_a_given_delay_overrides_the_policy(delay: float) -> None:
    assert release_disposition(claim(zq.AtLeastOnce(), 3), delay, None).delay == delay


def test_the_last_attempt_ends_in_the_dead_letters_whatever_the_delay() -> None:
    policy = zq.ConsumeTimes(3)
    assert release_disposition(claim(policy, 2), 0, None).kind == "release"
    disposition = release_disposition(claim(policy, 3), 0, "ValueError: bad")
    assert disposition.kind == "dead"
    assert disposition.reason == "delivered 3 of 3 times without success; last error: ValueError: bad"


def test_scheduled_retries_extend_the_limit_except_with_consume_once() -> None:
    assert release_disposition(claim(zq.ConsumeTimes(3), 7, retries=5), 0, None).kind == "release"
    assert release_disposition(claim(zq.ConsumeTimes(3), 8, retries=5), 0, None).kind == "dead"
    assert release_disposition(claim(zq.ConsumeOnce(), 1, retries=5), 0, None).kind == "dead"


@pytest.mark.parametrize("policy", [zq.ConsumeOnce(exhausted="drop"), zq.ConsumeTimes(1, exhausted="drop")], ids=repr)
def test_the_last_attempt_drops_the_message_if_the_policy_says_so(policy: zq.Policy) -> None:
    assert release_disposition(claim(policy, 1), None, None).kind == "consume"


def test_a_message_that_was_never_delivered_is_released() -> None:
    assert release_disposition(claim(zq.ConsumeOnce(), 1, delivered=False), 0, None).kind == "release"


def test_an_error_without_a_message_is_described_by_its_type() -> None:
    assert describe(TimeoutError()) == "TimeoutError"
    assert describe(ValueError("no such order")) == "ValueError: no such order"
