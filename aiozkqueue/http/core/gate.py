"""Access control: the key of a request, its permissions, and its rate."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from . import problems
from .keys import Caller
from .origins import is_cross_site, is_safe_host
from .permissions import Permissions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from .keys import Keys
    from .permissions import Verb

HEADER: Final = "x-bv-api-key"
PARAMETER: Final = "APIKey"
#: Maximum number of callers whose rate is tracked; the least recently admitted one is dropped for a new one.
MOST_WATCHED: Final = 10_000


def key_of(request: Request) -> str | None:
    """Return the key of a request, if it has one."""
    key = request.headers.get(HEADER) or request.query_params.get(PARAMETER)
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    if not key and scheme.lower() == "bearer":  # as Prometheus sends it
        return credentials.strip()
    return key


class Gate:
    """Admits requests by their key.

    Args:
        keys: where keys are stored.
        anonymous: the permissions of requests without a key; empty by default.
        hosts: the host names that requests without a key may use, see `is_safe_host`; None: any.
        rate: the maximum number of requests per second for each key, with bursts of twice as many; None: unlimited.
            Requests without a valid key count for their client address.
    """

    def __init__(
        self,
        keys: Keys,
        *,
        anonymous: Sequence[str] = (),
        hosts: Sequence[str] | None = None,
        rate: float | None = None,
    ) -> None:
        self._keys = keys
        self._anonymous = Caller("", Permissions(anonymous)) if anonymous else None
        self._hosts = hosts
        self._buckets = None if rate is None else Buckets(rate)

    async def caller(self, request: Request) -> Caller:
        """Return the caller of a request.

        Raises: ProblemError: the key is missing or unknown, or the rate is exceeded.
        """
        key = key_of(request)
        caller = None if not key and is_cross_site(request) else await self.bearer(request, key)
        if caller is None:
            raise problems.unauthorized()
        return caller

    async def bearer(self, request: Request, key: str | None) -> Caller | None:
        """Return the owner of a request's key; None: the key is unknown.

        Raises: ProblemError: the rate is exceeded.
        """
        if not key and self._anonymous is None:
            return None
        now, peer = time.monotonic(), ("peer", "" if request.client is None else request.client.host)
        if not key:
            if not is_safe_host(request, self._hosts):
                return None
            self._spend(peer, now)
            return self._anonymous
        if self._buckets is not None and not self._keys.knows(key):
            self._check(self._buckets.wait(peer, now))  # before ZooKeeper is asked
        caller = await self._keys.caller(key)
        self._spend(peer if caller is None else ("key", caller.name), now)
        return caller

    async def admit(self, request: Request, verb: Verb, *queues: str) -> Caller:
        """Check that the caller may do this with these queues. Raises: ProblemError."""
        caller = await self.caller(request)
        if not all(caller.permissions.allows(verb, queue) for queue in queues):
            raise problems.unauthorized()
        return caller

    def _spend(self, who: tuple[str, str], now: float) -> None:
        if self._buckets is not None:
            self._check(self._buckets.spend(who, now))

    @staticmethod
    def _check(wait: float) -> None:
        if wait > 0:
            raise problems.too_often(max(1, math.ceil(wait)))


class Buckets:
    """The number of requests that each caller may make now: ``rate`` per second, in bursts of twice as many. Pure."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._most = max(1.0, 2 * rate)
        # The tokens of each caller, and when they were counted.
        self._left: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()

    def wait(self, who: tuple[str, str], now: float) -> float:
        """Return the seconds until a caller may make a request; 0: now."""
        return max(0.0, (1 - self._tokens(who, now)) / self._rate)

    def spend(self, who: tuple[str, str], now: float) -> float:
        """Count a request. Return as `wait`: if that is not 0, the request is rejected and not counted."""
        wait = self.wait(who, now)
        if wait > 0:
            return wait
        self._left[who] = self._tokens(who, now) - 1, now
        self._left.move_to_end(who)
        if len(self._left) > MOST_WATCHED:
            self._left.popitem(last=False)
        return 0.0

    def _tokens(self, who: tuple[str, str], now: float) -> float:
        left, since = self._left.get(who, (self._most, now))
        return min(self._most, left + (now - since) * self._rate)
