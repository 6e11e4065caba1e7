"""The bus: each group receives every event, and a finished subscriber is not called again."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from tests.simulation.checker import rule
from tests.simulation.history import Status
from tests.simulation.programs.bus import BusLog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History
    from tests.simulation.programs.bus import Call


@rule
def a_group_receives_each_event_posted_after_it_joined_once(history: History) -> Iterator[str]:
    log = history.part(BusLog)
    for at, tokens in log.looks:
        seen = Counter(tokens)
        for token, post in log.posts.items():
            if seen[token] > 1:
                yield f"the queue of the group has {token} {seen[token]} times"
            if post.status is Status.COMMITTED and post.began > log.joined and post.decided < at and not seen[token]:
                yield f"the group joined at {log.joined}, and its queue lacks {token}, which was posted at {post.began}"
            if post.status is Status.NOT_COMMITTED and seen[token]:
                yield f"the queue of the group has {token}, although its post failed"


@rule
def a_finished_subscriber_is_not_called_again(history: History) -> Iterator[str]:
    by_token: defaultdict[str, defaultdict[int, list[Call]]] = defaultdict(lambda: defaultdict(list))
    for call in history.part(BusLog).calls:
        by_token[call.token][call.attempt].append(call)
        if call.done & call.called:
            yield f"{call.token}: {call.done & call.called} were called, although the message lists them as finished"
    for token, attempts in by_token.items():
        for attempt, calls in attempts.items():
            # A counted attempt has recorded its finished subscribers. An attempt whose process died is not counted.
            if len(calls) == 1 and attempt + 1 in attempts:
                forgotten = (calls[0].done | calls[0].succeeded) - attempts[attempt + 1][0].done
                if forgotten:
                    yield f"{token}: attempt {attempt + 1} does not list {forgotten}, which had finished before"
