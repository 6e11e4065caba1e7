"""Who may come in: the key of a request, its permissions, and how often it comes."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from . import problems
from .keys import Caller
from .permissions import Permissions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from .keys import Keys
    from .permissions import Verb

HEADER: Final = "x-bv-api-key"
PARAMETER: Final = "APIKey"
#: Callers whose rate is watched.
MOST_WATCHED: Final = 10_000


class Gate:
    """Lets requests in by their key.

    Args:
        keys: where keys are stored.
        anonymous: permissions of requests without a key; none by default.
        rate: requests a second that each key may make, with bursts of twice as many; None: any number.
    """

    def __init__(self, keys: Keys, *, anonymous: Sequence[str] = (), rate: float | None = None) -> None:
        self._keys = keys
        self._anonymous = Caller("", Permissions(anonymous)) if anonymous else None
        self._rate = rate
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # by caller: what is left, since when

    async def caller(self, request: Request) -> Caller:
        """Tell who makes a request.

        Raises: ProblemError: nobody who is known, or one who comes too often.
        """
        caller = await self.known(request)
        if caller is None:
            raise problems.unauthorized()
        self._count(caller.name)
        return caller

    async def known(self, request: Request) -> Caller | None:
        """Tell who makes a request, if that is known."""
        key = request.headers.get(HEADER) or request.query_params.get(PARAMETER)
        scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
        if not key and scheme.lower() == "bearer":  # Prometheus' way
            key = credentials.strip()
        return await self.bearer(key)

    async def bearer(self, key: str | None) -> Caller | None:
        """Tell whose key this is; without one, it is anybody's."""
        return await self._keys.caller(key) if key else self._anonymous

    async def admit(self, request: Request, verb: Verb, *queues: str) -> Caller:
        """Let in who may do this with these queues. Raises: ProblemError."""
        caller = await self.caller(request)
        if not all(caller.permissions.allows(verb, queue) for queue in queues):
            raise problems.unauthorized()
        return caller

    def _count(self, name: str) -> None:
        if self._rate is None:
            return
        now, most = time.monotonic(), 2 * self._rate
        left, since = self._buckets.pop(name, (most, now))
        left = min(most, left + (now - since) * self._rate)
        self._buckets[name] = (max(left - 1, 0.0), now)
        if len(self._buckets) > MOST_WATCHED:
            self._buckets.popitem(last=False)
        if left < 1:
            raise problems.too_often(max(1, round(1 / self._rate)))
