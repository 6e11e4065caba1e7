"""Queues of other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.dialects import ForeignPaths
from aiozkqueue.queue.candidates.foreign import Doubts
from aiozkqueue.queue.claim.candidate_index import CandidateIndex
from aiozkqueue.queue.claim.foreign import Splitter
from tests.simulation.mutations import mutation
from tests.simulation.stories.dialects import (
    a_peer_lets_go_of_what_one_of_ours_asks_for,
    a_peer_locks_what_is_gone,
    a_peer_takes_from_a_curator_queue_too,
    items_hold_several_messages,
)

if TYPE_CHECKING:
    import pytest

    from aiozkqueue.queue.state.claim import Claim


@mutation(a_peer_takes_from_a_curator_queue_too)
def locks_where_no_peer_looks_for_them(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ForeignPaths, "lock", lambda self, item: f"{self.due}/{item}")
    patch.setattr(ForeignPaths, "lock_of", lambda self, name: None)  # noqa: ARG005 - it does not know theirs either


@mutation(a_peer_lets_go_of_what_one_of_ours_asks_for)
def a_refusal_is_believed_whatever_has_been_heard_since(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CandidateIndex, "contended", lambda self, lock: self._priority_index.lock(lock))


@mutation(a_peer_locks_what_is_gone)
def an_item_is_believed_to_be_there_when_its_lock_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Doubts, "unlocked", lambda self, item: self._open.setdefault(item, True))
    patch.setattr(Doubts, "without_gone", lambda self, items: list(items))  # noqa: ARG005 - it knows of none
    patch.setattr(
        CandidateIndex,
        "_settle_doubts",
        lambda self, items, found: [self.on_item(f"items/{item}") for item, _ in zip(items, found, strict=True)],
    )


@mutation(a_peer_locks_what_is_gone)
def what_has_gone_is_never_looked_for_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Doubts, "found", lambda self, item: None)  # noqa: ARG005 - it takes no note
    patch.setattr(Doubts, "clear", lambda self: self._open.clear())


@mutation(a_peer_lets_go_of_what_one_of_ours_asks_for)
def nobody_looks_at_an_item_whose_lock_has_ended(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Doubts, "unlocked", lambda self, item: False)  # noqa: ARG005 - it takes no note


@mutation(items_hold_several_messages)
def what_is_behind_an_item_of_several_is_not_given_back(patch: pytest.MonkeyPatch) -> None:
    whole = Splitter.next_of

    async def next_of(self: Splitter, claims: list[Claim]) -> list[Claim]:
        behind = [claim for claim in claims if claim.rest is None]
        return [*await whole(self, [claim for claim in claims if claim.rest is not None]), *behind]

    patch.setattr(Splitter, "next_of", next_of)


@mutation(items_hold_several_messages)
def what_is_next_is_looked_for_before_the_parts_have_come(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Splitter, "busy", False)


@mutation(items_hold_several_messages)
def an_item_of_several_is_handed_over_by_its_first_message(patch: pytest.MonkeyPatch) -> None:
    async def next_of(self: Splitter, claims: list[Claim]) -> list[Claim]:  # noqa: ARG001
        return claims

    patch.setattr(Splitter, "next_of", next_of)
