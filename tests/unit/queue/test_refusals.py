"""The operations of a multi that a refusal concerns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aiozkqueue.queue.commit.refusals import refused_alike
from aiozkqueue.zookeeper import (
    BadVersionError,
    Check,
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    SetData,
    ZooKeeperError,
)

if TYPE_CHECKING:
    from aiozkqueue.zookeeper import Operation

MULTI: list[Operation] = [
    Check("/q", 1),
    Create("/q/keys/a"),
    Create("/q/later/7/item-", sequential=True),
    Create("/q/keys/a"),
    SetData("/q/later/7", b""),
    Create("/q/later/7/item-", sequential=True),
    Delete("/q/later/7/item-1"),
    Create("/q/later/8/item-", sequential=True),
    Create("/q/keys/a"),
    Create("/q/due"),
    Create("/q/due/1"),
    Create("/q/due/2"),
]


@pytest.mark.parametrize(
    ("error", "index", "alike"),
    [
        (NoNodeError, 2, [2, 5]),
        (NoNodeError, 5, [2, 5]),
        (NoNodeError, 7, [7]),
        (NodeExistsError, 1, [1, 3, 8]),
        (NodeExistsError, 3, [3, 8]),
        (NodeExistsError, 2, [2]),
        (NoNodeError, 10, [10]),
        (NoNodeError, 6, [6]),
        (NodeExistsError, 6, [6]),
        (BadVersionError, 0, [0]),
    ],
    ids=[
        "a missing folder",
        "a missing folder, at a later create",
        "another folder",
        "an existing znode",
        "a znode that this multi creates first",
        "a lane whose counter has ended",
        "a folder that this multi creates",
        "a missing znode",
        "no create",
        "a check",
    ],
)
def test_a_refusal_concerns_the_creates_with_the_same_cause(
    error: type[ZooKeeperError], index: int, alike: list[int]
) -> None:
    assert refused_alike(MULTI, index, error("refused")) == alike
