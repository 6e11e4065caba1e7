"""Defects in queues of other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.dialects import ForeignPaths
from aiozkqueue.queue.candidates.foreign import Doubts
from aiozkqueue.queue.claim.candidate_index import CandidateIndex
from aiozkqueue.queue.claim.foreign import Splitter
from aiozkqueue.queue.claim.watched_index import WatchedIndex
from tests.simulation.mutations import mutation
from tests.simulation.stories.dialects import (
    a_peer_consumes_the_same_curator_queue,
    a_peer_locks_deleted_items,
    a_peer_releases_an_item_that_we_try_to_lock,
    items_hold_several_messages,
)

if TYPE_CHECKING:
    import pytest

    from aiozkqueue.queue.state.claim import Claim


@mutation(a_peer_consumes_the_same_curator_queue)
def locks_at_a_path_unknown_to_the_peer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ForeignPaths, "lock", lambda self, item: f"{self.due}/{item}")
    patch.setattr(ForeignPaths, "lock_of", lambda self, name: None)  # noqa: ARG005 - it also ignores the peer's locks


@mutation(a_peer_releases_an_item_that_we_try_to_lock)
def lock_release_heard_during_a_claim_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CandidateIndex, "contended", lambda self, lock: self.levels.lock(lock))


@mutation(a_peer_locks_deleted_items)
def item_assumed_present_when_its_lock_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Doubts, "unlocked", lambda self, item: self._open.setdefault(item, True))
    patch.setattr(Doubts, "without_gone", lambda self, items: list(items))  # noqa: ARG005 - it excludes none
    patch.setattr(
        WatchedIndex,
        "settle_doubts",
        lambda self, items, found: [self.on_item(f"items/{item}") for item, _ in zip(items, found, strict=True)],
    )


@mutation(a_peer_locks_deleted_items)
def deleted_items_never_listed_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Doubts, "found", lambda self, item: None)  # noqa: ARG005 - it records nothing
    patch.setattr(Doubts, "clear", lambda self: self._open.clear())


@mutation(a_peer_releases_an_item_that_we_try_to_lock)
def items_not_checked_when_their_lock_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Doubts, "unlocked", lambda self, item: False)  # noqa: ARG005 - it records nothing


@mutation(items_hold_several_messages)
def claims_behind_an_item_of_several_messages_kept(patch: pytest.MonkeyPatch) -> None:
    whole = Splitter.next_of

    async def next_of(self: Splitter, claims: list[Claim]) -> list[Claim]:
        behind = [claim for claim in claims if claim.remainder is None]
        return [*await whole(self, [claim for claim in claims if claim.remainder is not None]), *behind]

    patch.setattr(Splitter, "next_of", next_of)


@mutation(items_hold_several_messages)
def next_item_claimed_before_the_parts_of_the_last(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Splitter, "busy", False)


@mutation(items_hold_several_messages)
def item_of_several_messages_delivered_as_its_first(patch: pytest.MonkeyPatch) -> None:
    async def next_of(self: Splitter, claims: list[Claim]) -> list[Claim]:  # noqa: ARG001 - as patched
        return claims

    patch.setattr(Splitter, "next_of", next_of)
