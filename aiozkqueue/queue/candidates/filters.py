"""Selects the candidates that match a consumer's filters, by names alone: each tag combination is evaluated once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.layout import name_at, name_digest

from .backlog import BACKLOG_LIMIT
from .tag_records import MOST_KNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.layout import Condition

    from .tag_records import TagRecords


class FilterSelector:
    """Selects the names of items whose tags match one filter."""

    def __init__(self, condition: Condition, records: TagRecords) -> None:
        self._condition = condition
        self._records = records
        self._verdicts: dict[str, bool] = {}
        self._reported: list[str] = []
        self._unread: set[str] = set()  # digests whose record was missing or invalid
        self.refused: int = 0
        """The number of names in the last listing that did not match."""
        self.passed: int = 0
        """The number that matched."""

    def start_over(self) -> None:
        """Forget the reported items."""
        self._reported.clear()

    def matches_reported(self, place: str) -> bool:
        """Whether a reported item matches this filter; `take_matching` decides later if its tags are not known yet."""
        digest = name_digest(name_at(place))
        if digest is None:
            return False
        verdict = self._verdicts.get(digest)
        if verdict is None:
            self._reported.append(place)
        return bool(verdict)

    @property
    def undecided(self) -> bool:
        """Whether there are reported items with unknown tags."""
        return bool(self._reported)

    async def take_matching(self, generation: int) -> list[str] | None:
        """Return the places of those that match, and forget all; None: list again, because items were missed."""
        places, self._reported = self._reported, []
        unread = len(self._unread)
        try:
            passed = await self.select(places, generation)
        except BaseException:
            self._reported = places + self._reported
            raise
        return passed if len(self._unread) >= unread else None

    def begin_listing(self) -> None:
        """Count from 0: a listing begins."""
        self.refused = self.passed = 0

    async def of_listing(self, names: list[str], generation: int) -> list[str]:
        """Return those names of a listing that match."""
        passed = await self.select(names, generation)
        self.refused += len(names) - len(passed)
        self.passed += len(passed)
        return passed

    def kept_all(self, lanes: Sequence[str]) -> bool:
        """Whether the backlog holds all matching items, after a listing from which some were taken."""
        return len(lanes) == 1 and self.passed < BACKLOG_LIMIT

    async def select(self, names: Sequence[str], generation: int) -> list[str]:
        """Return the names, or places, of the items that match, in their order."""
        digests = [name_digest(name_at(name)) for name in names]
        unknown = {digest for digest in digests if digest is not None and digest not in self._verdicts}
        verdicts = self._verdicts
        if unknown:
            if len(verdicts) + len(unknown) > MOST_KNOWN:
                verdicts = self._verdicts = {}
                unknown = {digest for digest in digests if digest is not None}
            tags = await self._records.read(sorted(unknown), generation)
            for digest, record in tags.items():
                verdicts[digest] = self._condition.accepts(record)
            self._unread = (self._unread | unknown) - tags.keys()
            if len(self._unread) > MOST_KNOWN:
                self._unread.clear()
        # An item whose record is missing has no known tags: it stays for consumers without filters.
        return [
            name for name, digest in zip(names, digests, strict=True) if digest is not None and verdicts.get(digest)
        ]
