"""A driver that unloads a queue in batches of several small pages."""

from __future__ import annotations

from typing import Any

from aiozkqueue.batches import acknowledge, making
from tests.spark.test_unload import work

pages: Any = making
pages.PAGE = 2  # so that a batch of few messages has several pages
removal: Any = acknowledge
removal.MAX_CONCURRENT = 1  # so that a driver can be killed between two of them

__all__ = ["work"]
