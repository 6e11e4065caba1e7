"""How a service keeps Python's garbage collector from searching the same objects again and again."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

#: New objects after which the young ones are searched. Python's 700 are made by the messages of one request, all of
#: which are in use still.
YOUNG: Final = 10_000


@contextmanager
def settled_heap() -> Iterator[None]:
    """Leave out of the search for garbage what is there now, and search what comes less often, for as long as this is.

    For a process that has started and continues with its work: imports and set-up are searched no more. A program that
    has chosen a rarer search, or none, keeps it.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    if 0 < before[0] < YOUNG:
        gc.set_threshold(YOUNG, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
