"""Collectors for `children_into`, which keep a part of a listing that arrives in pieces. Pure.

A piece has some thousand names. A collector does a bounded amount of work with each, so that the event loop can run
other tasks between two pieces, however long the listing is.
"""

from __future__ import annotations

from bisect import bisect_right
from heapq import merge
from itertools import chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from aiozkqueue.layout import SEQUENCE_DIGITS
from aiozkqueue.runtime.strings import Names, Strings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Names sorted at a time: a few milliseconds.
_RUN: Final = 8192
#: Names tested at a time.
_CHUNK: Final = 1024
#: One in this many names represents those before it when the position of the first ``limit`` is estimated.
_STEP: Final = 64

#: The sequence number that ZooKeeper gives to children of a parent, in order of creation.
sequence_of: Callable[[str], Any] = itemgetter(slice(-SEQUENCE_DIGITS, None))


class Matching:
    """The names that pass a test, in no order."""

    def __init__(self, passes: Callable[[str], object] | None = None) -> None:
        self._passes = passes
        self.names: Names = Names()
        self.size: int = 0
        """The size of the listing, bytes."""
        self.number: int = 0
        """The number of names in the listing."""

    def take(self, names: list[str]) -> None:
        """Keep the names that pass."""
        self.size += _size(names)
        self.number += len(names)
        self.names.extend(names if self._passes is None else filter(self._passes, names))


class Parsed:
    """The results of a function for all names for which it returns one, added to ``values`` if given."""

    def __init__(self, parse: Callable[[str], str | None], values: Strings | None = None) -> None:
        self._parse = parse
        self.values: Strings = Strings() if values is None else values

    def take(self, names: list[str]) -> None:
        """Add the results for these names."""
        self.values.update(value for value in map(self._parse, names) if value is not None)


class Earliest:
    """The first ``limit`` names that pass a test, in the order of a key; without a limit, all.

    However many names arrive, few more are held at a time: a quarter more, and a piece. Most names of a long listing
    come too late in the order to be tested: once there are enough, only names before the last of them are. Names are
    kept in sorted runs that are merged when they are read, so no step sorts a million names. Without a limit, runs are
    packed.
    """

    def __init__(
        self, limit: int | None, passes: Callable[[str], object] | None = None, key: Callable[[str], Any] = sequence_of
    ) -> None:
        self._limit = limit
        self._most = None if limit is None else limit + max(1, limit // 4)
        self._passes = passes
        self._key = key
        self._runs: list[list[str]] = []
        self._packed: list[Names] = []  # the runs, without a limit
        self._fresh: list[str] = []
        self._held = 0
        self._last: Any = None
        """A key that the first ``limit`` names so far do not exceed; None: there are fewer."""
        self.size: int = 0
        """The size of the listing, bytes."""

    def take(self, names: list[str]) -> None:
        """Keep the names that pass and may be among the first."""
        self.size += _size(names)
        for start in range(0, len(names), _CHUNK):  # the first chunk limits which others are tested
            self._take(names[start : start + _CHUNK])

    def _take(self, names: list[str]) -> None:
        if self._last is not None:
            key, last = self._key, self._last
            names = [name for name in names if key(name) < last]
        before = len(self._fresh)
        self._fresh += names if self._passes is None else filter(self._passes, names)
        self._held += len(self._fresh) - before
        if self._most is not None and self._held >= self._most:
            self._prune()
        elif len(self._fresh) >= _RUN:
            self._close_run()

    @property
    def held(self) -> int:
        """How many names are held."""
        return self._held

    def in_order(self) -> Iterator[str]:
        """Yield the names in order, each once; names that arrive later are not included.

        Few names are sorted at once.
        """
        if self._held <= _RUN:
            few = sorted(self.kept(), key=self._key)
            self._fresh, self._runs, self._packed, self._held = [], [], [], 0
            return islice(few, self._limit)
        self._close_run()
        runs = [*map(iter, self._packed), *map(emptied, self._runs)]
        self._runs, self._packed, self._held = [], [], 0
        return islice(runs[0] if len(runs) == 1 else merge(*runs, key=self._key), self._limit)

    def names(self) -> list[str]:
        """Return all names in order."""
        return list(self.in_order())

    def kept(self) -> Iterator[str]:
        """Yield all held names, possibly more than ``limit``, in no order."""
        return chain(self._fresh, *self._packed, *self._runs)

    def _close_run(self) -> None:
        if self._fresh:
            fresh, self._fresh = self._fresh, []
            fresh.sort(key=self._key)
            if self._limit is None:
                self._packed.append(Names(fresh))
            else:
                self._runs.append(fresh)

    def _prune(self) -> None:
        """Drop names that are not among the first ``limit``: all such names when few are held, otherwise most."""
        assert self._limit is not None  # noqa: S101 - callers have a limit
        self._close_run()
        key, runs = self._key, self._runs
        if self._held <= 4 * _RUN:
            whole = sorted((name for run in runs for name in run), key=key)
            del whole[self._limit :]
            self._runs = [whole]
            self._last = key(whole[-1]) if len(whole) == self._limit and whole else self._last
        else:
            steps = sorted(key(name) for run in runs for name in islice(run, _STEP - 1, None, _STEP))
            enough = -(-self._limit // _STEP)  # this many steps cover at least `limit` names
            if enough <= len(steps):
                self._last = steps[enough - 1]
                for run in runs:
                    del run[bisect_right(run, self._last, key=key) :]
                self._runs = [run for run in runs if run]
        self._held = sum(map(len, self._runs))


def emptied(names: list[str]) -> Iterator[str]:
    """Yield the names of a list, removing each from it."""
    names.reverse()
    while names:
        yield names.pop()


class FirstNames:
    """The first ``limit`` of names that arrive in order; it is used like `Earliest`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._names: list[str] = []

    def take(self, names: list[str]) -> None:
        """Keep the names that are among the first."""
        self._names += names[: self._limit - len(self._names)]

    @property
    def held(self) -> int:
        """How many names are held."""
        return len(self._names)

    def in_order(self) -> Iterator[str]:
        """Yield the names, each once, and release it."""
        return emptied(self.names())

    def names(self) -> list[str]:
        """Return all names, and release them."""
        names, self._names = self._names, []
        return names

    def kept(self) -> Iterator[str]:
        """Yield all held names."""
        return iter(self._names)


class ShareCollector:
    """A lane's names, divided as they arrive: the first of this consumer's own, and some of the others'.

    ``select`` returns this consumer's own of some names; None: all names are its own. With ``ordered``, names arrive in
    their order.
    """

    def __init__(
        self,
        select: Callable[[list[str]], list[str]] | None,
        passes: Callable[[str], object] | None,
        *,
        own_limit: int,
        peer_limit: int,
        ordered: bool = False,
    ) -> None:
        self._select = select
        self._passes = passes
        kept = FirstNames if ordered else Earliest
        self.own: Earliest | FirstNames = kept(own_limit)
        self.peers: Earliest | FirstNames = kept(peer_limit)
        self.size: int = 0
        """The size of the listing, bytes."""

    def take(self, names: list[str]) -> None:
        """Divide these names."""
        self.size += _size(names)
        if self._passes is not None:
            names = list(filter(self._passes, names))
        if self._select is None:
            self.own.take(names)
            return
        own = self._select(names)
        mine = set(own)
        self.own.take(own)
        self.peers.take([name for name in names if name not in mine])


def _size(names: list[str]) -> int:
    return len(names) * (len(names[0]) + 4) if names else 0
