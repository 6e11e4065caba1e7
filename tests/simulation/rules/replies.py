"""Replies: a caller gets only the reply of the commit that has ended its message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checker import rule
from tests.simulation.history import Status
from tests.simulation.programs.replies import ASKED, Calls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History

#: Seconds within which a reply arrives, with time for a lost session and a paused process.
PROMPTLY = 40.0


@rule
def a_reply_belongs_to_the_commit_that_ended_its_message(history: History) -> Iterator[str]:
    calls = history.part(Calls)
    for token, reply in calls.got.items():
        unit = calls.given.get(reply)
        if unit is None or reply.split()[0] != token:
            yield f"the call of {token} got {reply!r}"
        elif unit.status is Status.NOT_COMMITTED:
            yield f"the call of {token} got {reply!r} of {unit.client}, whose commit failed: {unit.why}"
        elif history.final.copies()[token]:
            yield f"the call of {token} got {reply!r}, and the message is still stored"


@rule
def a_caller_that_waits_gets_the_reply_of_a_commit(history: History) -> Iterator[str]:
    calls = history.part(Calls)
    for reply, unit in calls.given.items():
        token = reply.split()[0]
        missed = calls.missed.get(token, 0.0)
        if unit.status is Status.COMMITTED and missed > unit.takes[0].at + PROMPTLY:
            yield f"the call of {token} ended at {missed} without {reply!r}, given at {unit.takes[0].at}"


@rule
def a_call_is_given_up_only_if_its_message_was_rejected_purged_or_exhausted(history: History) -> Iterator[str]:
    calls = history.part(Calls)
    purged = any(purge.queue == ASKED for purge in history.purged)
    deliveries = history.deliveries()
    rejected = {token for unit in history.units if unit.status is not Status.NOT_COMMITTED for token in unit.rejects}
    for token, reason in calls.given_up.items():
        removed = purged and reason == "it was purged"
        if not (token in rejected or removed or history.exhausted(ASKED, len(deliveries.get(token, ())))):
            yield f"the call of {token} ended as given up ({reason}), and no commit has rejected the message"
        elif history.final.copies()[token]:
            yield f"the call of {token} ended as given up, and the message is still stored"


@rule
def a_caller_that_waits_learns_that_its_message_was_rejected(history: History) -> Iterator[str]:
    calls = history.part(Calls)
    for token, unit in calls.rejected.items():
        missed = calls.missed.get(token, 0.0)
        if unit.status is Status.COMMITTED and missed > unit.takes[0].at + PROMPTLY:
            yield f"the call of {token} ended at {missed}, although its message was rejected at {unit.takes[0].at}"
