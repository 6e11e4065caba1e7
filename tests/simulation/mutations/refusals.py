"""Defects in the reaction to refusals: a session sends the same write again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from aiozkqueue.queue.commit import end_claims, release_claims
from tests.simulation.mutations import mutation
from tests.simulation.workload import run

if TYPE_CHECKING:
    import pytest


@mutation(partial(run, feature="obstructed"))
def refused_attempt_record_sent_again(patch: pytest.MonkeyPatch) -> None:
    def by_any_version(_: object, claim: Any, *__: object) -> None:
        claim.meta_version = -1

    patch.setattr(end_claims.EndClaims, "_answer_record", by_any_version)
    patch.setattr(release_claims.ReleaseClaims, "_refused_record", by_any_version)


@mutation(partial(run, feature="obstructed"))
def refused_release_sent_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(release_claims.ReleaseClaims, "_step_down", lambda *_: None)
