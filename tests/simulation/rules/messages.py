"""Messages: no message is lost or duplicated, each was put, and no unexpected error occurs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.simulation.checker import rule
from tests.simulation.history import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History


@rule
def no_unexpected_error_or_endless_wait_occurs(history: History) -> Iterator[str]:
    yield from history.trouble


@rule
def no_committed_message_is_lost(history: History) -> Iterator[str]:
    ends, deliveries = history.ends(), history.deliveries()
    settled_unknown = {
        delivery.token
        for unit in history.units
        if unit.status in (Status.UNKNOWN, Status.PENDING)
        for delivery in unit.takes
    }
    left = history.final.copies()
    purged = Counter[str]()
    for purge in history.purged:
        purged[purge.queue] += purge.removed  # type: ignore[assignment]  # infinity is also a count
    for token, (queue, unit) in history.put().items():
        if unit.status is not Status.COMMITTED or ends[token] or token in left or token in settled_unknown:
            continue
        if queue in history.drops and history.exhausted(queue, len(deliveries.get(token, ()))):
            continue
        purged[queue] -= 1
        if purged[queue] >= 0:
            continue
        yield f"{token} in {queue!r}, put by {unit.client}, is lost after {len(deliveries.get(token, ()))} deliveries"


@rule
def each_message_ends_once(history: History) -> Iterator[str]:
    left = history.final.copies()
    ends = history.ends()
    for token in sorted({*left, *ends}):
        if left[token] + ends[token] > 1:
            yield f"{token} ended {ends[token]} times, and is still stored {left[token]} times"


@rule
def a_put_reported_as_failed_has_no_effect(history: History) -> Iterator[str]:
    seen = set(history.deliveries())
    for tokens in (*history.final.items.values(), *history.final.dead.values()):
        seen.update(tokens)
    for unit in history.units:
        if unit.status is Status.NOT_COMMITTED:
            for token in unit.puts:
                if token in seen:
                    yield f"{token} was stored, although its put by {unit.client} failed: {unit.why}"


@rule
def every_message_was_put(history: History) -> Iterator[str]:
    known = history.put()
    for token in {*history.deliveries(), *history.ends()}:
        if token not in known:
            yield f"{token} was delivered or ended, and no client has put it"


@rule
def a_consumed_message_is_not_redelivered(history: History) -> Iterator[str]:
    deliveries = history.deliveries()
    for unit in history.units:
        if unit.status is Status.COMMITTED:
            for delivery in unit.takes:
                for again in deliveries[delivery.token]:
                    if history.shown_after_session_end(again) or history.forced_out(again):
                        continue
                    if again.at > unit.decided and delivery.token not in unit.keeps | unit.rejects:
                        yield f"{delivery.token} was delivered to {again.client} after {unit.client} had committed it"
