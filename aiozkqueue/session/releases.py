"""How a unit of work that is undone releases its messages: when each is redelivered, and with which data."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.queue.commit.dispositions import LONGEST_SKIP, release_disposition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aiozkqueue.queue.commit.dispositions import Disposition
    from aiozkqueue.queue.state.claim import Claim


class Release(NamedTuple):
    """How claims are released; see `UnitOfWork.rollback`."""

    delay: float | None
    error: str | None = None
    cause: BaseException | None = None
    rewrite: bytes | None = None
    date: int | None = None
    obstructed: str | None = None
    """The id of a message that could not be removed: its delay grows with each attempt, whatever its policy says."""
    in_doubt: bool = False
    """Whether a commit may have been applied. A message that it may have delayed keeps its delay."""

    def dispositions(
        self, claims: Mapping[Claim, Disposition], random: Callable[[], float]
    ) -> dict[Claim, Disposition]:
        """Return the disposition of each claim: a release, or another end if its attempts are used up.

        ``claims`` has the disposition of each claim in the commit.
        """
        return {claim: self._disposition(claim, decided, random) for claim, decided in claims.items()}

    def _disposition(self, claim: Claim, decided: Disposition, random: Callable[[], float]) -> Disposition:
        disposition = release_disposition(claim, self.delay, self.error, random)
        if disposition.kind != "release":
            return disposition._replace(cause=self.cause)
        if claim.id == self.obstructed:
            by_policy = claim.state.snapshot.policy.backoff.delay(claim.attempt, random)
            return disposition._replace(delay=max(_obstructed_delay(claim.attempt), by_policy))
        if self.in_doubt and decided.delay and not claim.bundled and claim.group_lock is None:
            # All other ends remove the item or raise a version, so a release is refused if they were applied.
            return disposition._replace(in_doubt=True) if claim.state.dialect is None else decided
        if self.rewrite is not None or self.date is not None:
            return disposition._replace(rewrite=self.rewrite, date=self.date)
        return disposition


def _obstructed_delay(attempt: int) -> float:
    """Return the seconds before a message that could not be removed is redelivered, by its number of attempts."""
    return min(LONGEST_SKIP, 8.0 ** min(attempt - 1, 10))


def refuse_to_overtake(what: str, dispositions: Mapping[Claim, Disposition]) -> None:
    """Refuse to release a message and end a later one of its group: the released one is redelivered first.

    Raises: InvalidOptionError.
    """
    for group_lock in {claim.group_lock: None for claim in dispositions if claim.group_lock is not None}:
        kinds = [dispositions[claim].kind for claim in group_lock.live if claim in dispositions]
        if "release" in kinds and set(kinds[kinds.index("release") :]) != {"release"}:
            msg = (
                f"{what}: it releases a message and ends a later one of the same group, which would overtake it; "
                "release the later ones too"
            )
            raise InvalidOptionError(msg)
