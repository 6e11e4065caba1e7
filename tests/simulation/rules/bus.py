"""The bus: groups get every event, and who is done is not called again."""

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
def a_group_gets_each_event_posted_after_it_joined_once(history: History) -> Iterator[str]:
    log = history.part(BusLog)
    for at, tokens in log.looks:
        seen = Counter(tokens)
        for token, post in log.posts.items():
            if seen[token] > 1:
                yield f"{token} is there {seen[token]} times"
            if post.status is Status.COMMITTED and post.began > log.joined and post.decided < at and not seen[token]:
                yield f"{token} was posted at {post.began}, after the group joined at {log.joined}, and is not there"
            if post.status is Status.NOT_COMMITTED and seen[token]:
                yield f"{token} is there, though its post was told to have failed"


@rule
def a_subscriber_that_is_done_is_not_called_again(history: History) -> Iterator[str]:
    by_token: defaultdict[str, defaultdict[int, list[Call]]] = defaultdict(lambda: defaultdict(list))
    for call in history.part(BusLog).calls:
        by_token[call.token][call.attempt].append(call)
        if call.done & call.called:
            yield f"{call.token}: {call.done & call.called} were called, though the message says that they are done"
    for token, attempts in by_token.items():
        for attempt, calls in attempts.items():
            # An attempt that is counted has left word; one whose process died has not, and is not counted either.
            if len(calls) == 1 and attempt + 1 in attempts:
                forgotten = (calls[0].done | calls[0].succeeded) - attempts[attempt + 1][0].done
                if forgotten:
                    yield f"{token}: attempt {attempt + 1} knows nothing of {forgotten}, who were done before"
