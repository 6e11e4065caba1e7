"""Recurring jobs: each occurrence is put once, and none is missed."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.simulation.checker import rule
from tests.simulation.programs.recurring import Ticks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History


@rule
def each_occurrence_is_put_once(history: History) -> Iterator[str]:
    put = {message: date for seen in history.part(Ticks).seen for message, date in seen.items()}
    for date, count in Counter(put.values()).items():
        if count > 1:
            yield f"the occurrence at {date} was put {count} times"


@rule
def no_occurrence_is_missed(history: History) -> Iterator[str]:
    for seen in history.part(Ticks).seen:
        dates = sorted({datetime.fromisoformat(date) for date in seen.values()})
        for before, after in pairwise(dates):
            if after - before != timedelta(seconds=1):
                yield f"no occurrence was put between those at {before} and {after}"
