"""The pace of one listener: when the next calls of its handler may begin.

IDLE ──a message arrives──▶ it leases a slot ──near──▶ the handler is called
  ▲                              │ far: the message is released
  │ slots have passed unused     ▼
  └────────────────────────── EAGER: it leases slots first, and asks for messages when one is near
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

if TYPE_CHECKING:
    from aiozkqueue.runtime.clock import Clock

    from .timeline import Timeline

#: Seconds after its moment for which a slot can be used.
USABLE_FOR: Final = 0.25
#: Seconds of slots that one lease covers; at least one slot.
LEASED: Final = 0.25
#: Seconds before its slot from which on a message may be held.
NEAR: Final = 0.5


class Rates(NamedTuple):
    """The limits of a listener, calls in a second: of itself, and of all sessions under a name."""

    own: float | None
    shared: float | None
    name: str | None


class _Slot(NamedTuple):
    begin: float
    end: float


class Pace:
    """When the calls of one listener's handler may begin.

    ``timeline`` is the shared limit of ``rates``. Before each call, messages are collected for ``lead`` seconds.
    """

    def __init__(self, clock: Clock, rates: Rates, timeline: Timeline | None, lead: float = 0.0) -> None:
        self._clock = clock
        self._lead = lead
        own, shared, _ = rates
        self._step = 0.0 if own is None else 1 / own
        self._timeline = timeline
        self._most = max(1, int(LEASED * min(rate for rate in (own, shared) if rate is not None)))
        self._next = clock.monotonic()  # when the next call may begin by the listener's own limit
        self._slots: deque[_Slot] = deque()
        self._count = 1  # slots of the next lease: doubled while all are used
        self._unused = 0  # the last slots of the last lease that passed unused
        self._eager = False
        self._stopped = False
        self._woken = asyncio.Event()
        self._scope: anyio.CancelScope | None = None

    def stop(self) -> None:
        """End the waits, now and later. Idempotent."""
        self._stopped = True
        self._woken.set()
        if self._scope is not None:
            self._scope.cancel()

    @property
    def moment(self) -> float | None:
        """When the next slot begins; None: no slot is reserved."""
        return self._slots[0].begin if self._slots else None

    async def reserve(self, most: int) -> int:
        """Return for how many calls, up to ``most``, messages may be asked for now; 0 stands for one without a slot.

        While messages are known to wait, it returns when it is time to collect them for a reserved slot.

        Raises: AccessDeniedError.
        """
        self._forget_passed()
        if not self._eager or self._stopped:
            return 0
        if not self._slots:
            await self._lease(most)
        if self._slots:
            await self._until(self._slots[0].begin - max(self._lead, NEAR / 5))
        return min(most, len(self._slots))

    async def admit(self) -> bool:
        """Wait until one call may begin; return False at once if that is not soon, or the listener is stopped.

        Raises: AccessDeniedError.
        """
        self._forget_passed()
        self._eager = True
        if not self._slots and self._is_near(self._next):
            await self._lease(1)
        if not self._slots or not self._is_near(self._slots[0].begin):
            return False
        await self._until(self._slots[0].begin)
        if self._stopped:
            return False
        self._slots.popleft()
        self._unused = 0
        return True

    def _is_near(self, moment: float) -> bool:
        return moment - self._clock.monotonic() <= NEAR + self._lead

    def _forget_passed(self) -> None:
        """Forget the slots whose time has passed: their listener is idle, or its process was suspended.

        The call for which the first of them was reserved may begin at once if no other has followed.
        """
        now, first = self._clock.monotonic(), self._slots[0].begin if self._slots else 0.0
        while self._slots and self._slots[0].end < now:
            self._slots.popleft()
            self._eager = False
            self._count = 1
            self._unused += 1
            if not self._slots:
                self._next = first

    async def _lease(self, most: int) -> None:
        """Reserve slots; none if the listener is stopped in the meantime."""
        count = min(most, self._count)
        self._count = min(self._most, 2 * self._count)
        if self._timeline is None:
            self._add(self._clock.monotonic() - USABLE_FOR, 0.0, count)
            return
        await self._until(self._next - NEAR)  # a slot that its own limit rules out would be lost
        with anyio.CancelScope() as self._scope:
            if not self._stopped:
                block = await self._timeline.lease(count, self._unused)
                self._unused = 0
                self._add(*block)
        self._scope = None

    def _add(self, first: float, step: float, count: int) -> None:
        """Add slots, which also respect the listener's own limit."""
        now = self._clock.monotonic()
        if self._timeline is None and self._next < first:
            self._next = now
        for number in range(count):
            moment = first + number * step
            begin = max(moment, self._next) if self._step else moment
            if self._timeline is not None and begin > moment + USABLE_FOR:
                break
            self._slots.append(_Slot(begin, begin + USABLE_FOR if self._timeline is None else moment + USABLE_FOR))
            self._next = begin + self._step

    async def _until(self, moment: float) -> None:
        """Wait until a moment, or until the listener is stopped."""
        while not self._stopped and (left := moment - self._clock.monotonic()) > 0:
            self._woken.clear()
            timer = self._clock.call_later(left, self._woken.set)
            try:
                await self._woken.wait()
            finally:
                timer.cancel()
