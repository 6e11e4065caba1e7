"""Cancellation of held messages: each is handled or cancelled, never both, and a running handler is cancelled."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import aiozkqueue as zq
from tests.simulation.checker import rule
from tests.simulation.history import Status
from tests.simulation.programs.cancelled_in_hand import PROMPTLY, InHand

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History


@rule
def a_message_in_hand_is_either_handled_or_cancelled(history: History) -> Iterator[str]:
    log = history.part(InHand)
    ends = Counter([*log.handled, *log.left])
    for token, calls in log.cancelled.items():
        ends[token] += sum(call.result is zq.Alteration.DONE for call in calls)
    for token, made in log.puts.items():
        if ends[token] > 1:
            yield f"{token} has {ends[token]} ends: {log.handled.count(token)} commits, {log.cancelled.get(token)}"
        in_doubt = any(call.status in (Status.UNKNOWN, Status.PENDING) for call in log.cancelled.get(token, ()))
        if made.status is Status.COMMITTED and not ends[token] and not in_doubt:
            yield f"{token} is lost"
        if made.status is Status.NOT_COMMITTED and ends[token]:
            yield f"{token} was stored, although its put failed"


@rule
def a_cancellation_that_finds_nothing_comes_after_the_end_of_its_message(history: History) -> Iterator[str]:
    log = history.part(InHand)
    for token, calls in log.cancelled.items():
        for call in calls:
            if call.result is zq.Alteration.HELD:
                yield f"{token} was left alone by a cancellation that includes held messages"
            elif call.result is zq.Alteration.NOT_FOUND and token in log.left and call.decided < log.taken:
                yield f"{token} was not found at {call.began}, and is still stored"


@rule
def the_handler_of_a_cancelled_message_is_cancelled(history: History) -> Iterator[str]:
    log = history.part(InHand)
    for running in log.running:
        if running.ended < log.over and running.ended - max(running.began, log.gone(running.tokens)) > PROMPTLY:
            yield (
                f"the handler of {running.tokens} began at {running.began}, ran on after"
                f" {log.gone(running.tokens)}: {running.ended}"
            )


@rule
def nothing_is_left_of_a_message_that_was_cancelled_in_hand(history: History) -> Iterator[str]:
    yield from history.part(InHand).leftovers
