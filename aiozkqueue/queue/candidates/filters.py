"""Which candidates a consumer with filters takes, by their names alone: each combination of tags is judged once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.layout import name_digest

from .backlog import BACKLOG_LIMIT
from .tag_records import MOST_KNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.layout import Condition

    from .tag_records import TagRecords


class FilterSelector:
    """Lets through the names of items whose tags pass one filter."""

    def __init__(self, condition: Condition, records: TagRecords) -> None:
        self._condition = condition
        self._records = records
        self._verdicts: dict[str, bool] = {}
        self._heard: list[str] = []
        self._unread: set[str] = set()  # digests whose record was missing, or no record
        self.refused: int = 0
        """How many names the last listing had that are not for this consumer."""
        self.passed: int = 0
        """How many it had that are."""

    def start_over(self) -> None:
        """Forget what has been heard."""
        self._heard.clear()

    def hear(self, place: str) -> bool:
        """Tell whether a new item is for this consumer; when its tags are not known yet, remember to find out.

        `heard` tells then.
        """
        digest = name_digest(place.rpartition("/")[2])
        if digest is None:
            return False
        verdict = self._verdicts.get(digest)
        if verdict is None:
            self._heard.append(place)
        return bool(verdict)

    @property
    def undecided(self) -> bool:
        """Whether items have been heard of whose tags are not known yet."""
        return bool(self._heard)

    async def heard(self, generation: int) -> list[str] | None:
        """Return the places of such items that are for this consumer; None: list, others were passed over before."""
        places, self._heard = self._heard, []
        unread = len(self._unread)
        try:
            passed = await self.sift(places, generation)
        except BaseException:
            self._heard = places + self._heard
            raise
        return passed if len(self._unread) >= unread else None

    async def of_listing(self, names: list[str], generation: int) -> list[str]:
        """Return those of a listing that are for this consumer."""
        passed = await self.sift(names, generation)
        self.refused, self.passed = len(names) - len(passed), len(passed)
        return passed

    def kept_all(self, lanes: Sequence[str]) -> bool:
        """Whether the backlog has all that is for this consumer, after a listing that something was taken from."""
        return len(lanes) == 1 and self.passed < BACKLOG_LIMIT

    async def sift(self, names: Sequence[str], generation: int) -> list[str]:
        """Return the names, or places, of items that are for this consumer, in their order."""
        digests = [name_digest(name.rpartition("/")[2]) for name in names]
        unknown = {digest for digest in digests if digest is not None and digest not in self._verdicts}
        verdicts = self._verdicts
        if unknown:
            if len(verdicts) + len(unknown) > MOST_KNOWN:
                verdicts = self._verdicts = {}
                unknown = {digest for digest in digests if digest is not None}
            tags = await self._records.read(sorted(unknown), generation)
            for digest, found in tags.items():
                verdicts[digest] = self._condition.accepts(found)
            self._unread = (self._unread | unknown) - tags.keys()
            if len(self._unread) > MOST_KNOWN:
                self._unread.clear()
        # One whose record is missing has no tags that anybody knows: it stays for those who do not ask.
        return [name for name, one in zip(names, digests, strict=True) if one is not None and verdicts.get(one)]
