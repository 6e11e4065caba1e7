"""A text in place of a collection of texts, which Python would read as its letters, is refused with the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.http import Settings
from aiozkqueue.spark.audit import move, report
from aiozkqueue.testing import ServerOptions

if TYPE_CHECKING:
    from collections.abc import Callable

NO_SPARK: Any = None  # the argument is refused before Spark is used


@pytest.mark.parametrize(
    ("option", "call"),
    [
        ("anonymous", lambda: Settings(anonymous="queue|*|*")),
        ("hosts", lambda: Settings(hosts="*.example.com")),  # "*" is in it, so every name would be allowed
        ("jvm_options", lambda: ServerOptions(jvm_options="-Xss1m")),
        ("queues", lambda: report(NO_SPARK, "folder", queues="orders")),
        ("queues", lambda: move(NO_SPARK, "folder", {}, queues="orders")),
    ],
)
def test_a_text_in_place_of_a_collection_is_refused(option: str, call: Callable[[], object]) -> None:
    with pytest.raises(InvalidOptionError, match=f"^{option} takes a collection of .*, not one str; put it"):
        call()
