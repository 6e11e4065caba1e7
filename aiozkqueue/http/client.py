"""An asyncio client of the service: EmoDB's ``QueueService`` interface, with names in snake case.

A request that fails because of the network or a server error (5xx) is repeated up to `RETRIES` times. Each retry
chooses a server again, after a random delay that grows from 50 ms to a second. A message may therefore be sent twice:
like EmoDB's, this service delivers at least once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self, cast
from urllib.parse import quote, urlsplit

from aiozkqueue.arguments import collection, required_seconds
from aiozkqueue.errors import InvalidOptionError, PayloadError, QueueError
from aiozkqueue.extras import needs
from aiozkqueue.session.internals import core_of
from aiozkqueue.zookeeper import ZooKeeperError

from .core.names import Kind
from .discovery import DEFAULT_CLUSTER, service_urls

with needs("http"):
    import httpx

    from .core.problems import EXCEPTION_HEADER, ILLEGAL_ARGUMENT, UNAUTHORIZED, UNKNOWN_MOVE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence
    from types import TracebackType

    from pydantic import JsonValue

    from aiozkqueue.arguments import Seconds
    from aiozkqueue.session.session import QueueSession

__all__ = [
    "Discovery",
    "FixedHosts",
    "IllegalArgumentError",
    "QueueServiceClient",
    "RegisteredHosts",
    "ServiceError",
    "ServiceMessage",
    "ServiceMove",
    "ServiceUnavailableError",
    "UnauthorizedError",
    "UnknownMoveReferenceError",
]

log: Final = logging.getLogger(__name__)

RETRIES: Final = 5
FIRST_DELAY: Final = 0.05
#: Maximum number of refused addresses that are remembered, so that each is logged once.
REFUSED_KEPT: Final = 1000
LONGEST_DELAY: Final = 1.0
#: The ends of the addresses that the client makes of those of `FixedHosts`.
_SERVICES: Final = tuple(f"/{kind}/1" for kind in Kind)
_GOES_ON: Final = 202
_SERVER_TROUBLE: Final = 500
_FORBIDDEN: Final = 403
_NOT_FOUND: Final = 404
#: The maximum number of characters of a response in the text of an error.
_SHOWN: Final = 500


class ServiceError(QueueError):
    """A request was refused or could not be sent."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status; None if no server answered."""


class UnauthorizedError(ServiceError):
    """The key is missing or unknown, or does not allow this."""


class IllegalArgumentError(ServiceError, ValueError):
    """A name, a message or a parameter is out of range."""


class UnknownMoveReferenceError(ServiceError, LookupError):
    """There is no move with this reference."""


class ServiceUnavailableError(ServiceError):
    """No server answered, or no server is connected to ZooKeeper."""


_BY_NAME: Final[dict[str, type[ServiceError]]] = {
    ILLEGAL_ARGUMENT: IllegalArgumentError,
    UNAUTHORIZED: UnauthorizedError,
    UNKNOWN_MOVE: UnknownMoveReferenceError,
}


class ServiceMessage(NamedTuple):
    """A message, as `poll` and `peek` return it."""

    id: str
    payload: JsonValue


class ServiceMove(NamedTuple):
    """The state of a move: ``IN_PROGRESS``, ``COMPLETE`` or ``ERROR``."""

    source: str
    target: str
    status: str


class Discovery(Protocol):
    """A source of servers' addresses."""

    async def urls(self, kind: Kind) -> Sequence[str]:
        """Return the services' addresses. Each ends with ``/queue/1`` or ``/dedupq/1``.

        Raises: ServiceUnavailableError: the lookup failed; the client tries again.
        """
        ...


class FixedHosts:
    """Servers at fixed addresses, such as ``"http://host:8080"``.

    Raises:
        InvalidOptionError: an address is invalid or missing.
    """

    def __init__(self, *bases: str) -> None:
        wrong = [base for base in bases if not _is_address(base)]
        if wrong or not bases:
            msg = f"servers: give addresses as 'http://host:8080', not {', '.join(map(repr, wrong)) or 'none'}"
            raise InvalidOptionError(msg)
        self._bases = tuple(base.rstrip("/") for base in bases)
        if services := [base for base in self._bases if base.endswith(_SERVICES)]:
            msg = f"servers: leave the path of the service out of {services[0]!r}; the client adds it, as dedup= says"
            raise InvalidOptionError(msg)

    async def urls(self, kind: Kind) -> Sequence[str]:
        """Return all of them."""
        return [f"{base}/{kind}/1" for base in self._bases]


class RegisteredHosts:
    """The servers of a cluster that are currently registered in ZooKeeper.

    The client sends its API key to every registered address, over plain HTTP unless the address begins with ``https``.
    Anybody with write access to ``/ostrich`` can register an address. Restrict the hosts with ``allow``, or protect
    ``/ostrich`` with an access control list.

    Args:
        session: the session that reads the registrations.
        cluster: the name that the servers got with ``--cluster``.
        allow: patterns of hosts to which the key may be sent, such as ``"*.internal"`` or ``"10.1.*"``, or with a
            scheme ``"https://*.internal"``. Other registrations are ignored and logged. None: any host.

    Raises:
        InvalidOptionError: ``allow`` is a single str, or contains something other than strings.
    """

    def __init__(
        self, session: QueueSession, cluster: str = DEFAULT_CLUSTER, *, allow: Collection[str] | None = None
    ) -> None:
        self._session = session
        self._cluster = cluster
        self._allow = None if allow is None else tuple(collection(allow, "allow", "patterns of hosts"))
        if not all(isinstance(cast("object", pattern), str) for pattern in self._allow or ()):
            msg = f"allow={self._allow!r}: give patterns of hosts, such as '*.internal'"
            raise InvalidOptionError(msg)
        self._refused: set[str] = set()

    async def urls(self, kind: Kind) -> Sequence[str]:
        """Return the registered addresses. Raises: ServiceUnavailableError: ZooKeeper does not answer."""
        try:
            urls = await service_urls(core_of(self._session).zookeeper, self._cluster, kind)
        except ZooKeeperError as error:
            msg = f"the registrations of the servers of {self._cluster!r} cannot be read: {error}"
            raise ServiceUnavailableError(msg) from error
        return [url for url in urls if self._allows(url)]

    def _allows(self, url: str) -> bool:
        valid = _is_address(url)
        if valid and (self._allow is None or any(_matches(url, pattern) for pattern in self._allow)):
            return True
        if url not in self._refused and len(self._refused) < REFUSED_KEPT:
            self._refused.add(url)
            why = "`allow` does not match it" if valid else "it is not an address"
            log.warning("cluster %s: %r is registered but gets no requests, because %s", self._cluster, url, why)
        return False


class QueueServiceClient:
    """Queues over HTTP: ``async with QueueServiceClient("http://host:8080", key=...) as queues``.

    Each method raises InvalidOptionError, and sends nothing, if a name is not a str.

    Args:
        servers: one address, or a source of addresses.
        key: the API key.
        dedup: whether to use the service that collapses equal messages.
        timeout: the maximum duration of a request in seconds; the ``wait`` of a poll is added. Each lookup of the
            servers may take as long.
        transport: a transport of httpx, for example one with your own TLS settings.

    Raises:
        InvalidOptionError: the key, the address or the timeout is invalid.
    """

    def __init__(
        self,
        servers: str | Discovery,
        *,
        key: str | None = None,
        dedup: bool = False,
        timeout: Seconds = 30,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._discovery: Discovery = FixedHosts(servers) if isinstance(servers, str) else servers
        if not hasattr(self._discovery, "urls"):
            msg = f"servers: give one address, FixedHosts(...) or RegisteredHosts(...), not {type(servers).__name__}"
            raise InvalidOptionError(msg)
        self._kind = Kind.DEDUPQ if dedup else Kind.QUEUE
        self._timeout = required_seconds(timeout, "timeout")
        if key is not None and not _is_key(key):
            msg = "invalid API key: give one that `aiozkqueue keys create` made"
            raise InvalidOptionError(msg)
        self._http = httpx.AsyncClient(headers={} if key is None else {"X-BV-API-Key": key}, transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        await self._http.aclose()

    # -- messages

    async def send(self, queue: str, message: JsonValue) -> None:
        """Put a message, which may be any JSON. Raises: PayloadError: it is not JSON; ServiceError."""
        await self._command("POST", f"{_part(queue)}/send", content=_json(message))

    async def send_all(
        self, queue: str | Mapping[str, Sequence[JsonValue]], messages: Sequence[JsonValue] | None = None
    ) -> None:
        """Put several messages into a queue, or into several queues: ``send_all({"a": [1, 2], "b": [3]})``.

        Raises:
            InvalidOptionError: the messages of a queue are a single str, bytes or mapping; none was sent.
            PayloadError: a message is not JSON; none was sent.
            ServiceError: some messages may have been put.
        """
        if isinstance(queue, str):
            if messages is None:
                msg = f"send_all({queue!r}): give the messages, or a mapping of queues to their messages"
                raise InvalidOptionError(msg)
            await self._command("POST", f"{_part(queue)}/sendbatch", content=_json(_listed(queue, messages)))
        else:
            if messages is not None:
                msg = "send_all takes messages= with one queue only; a mapping of queues holds its messages"
                raise InvalidOptionError(msg)
            if not isinstance(cast("object", queue), Mapping):
                msg = f"send_all takes a queue, or a mapping of queues to their messages, not {type(queue).__name__}"
                raise InvalidOptionError(msg)
            batches: dict[str, JsonValue] = {_name(name): _listed(name, batch) for name, batch in queue.items()}
            await self._command("POST", "_sendbatch", content=_json(batches))

    async def poll(
        self, queue: str, claim_ttl: Seconds = 30, limit: int = 10, *, wait: Seconds = 0
    ) -> list[ServiceMessage]:
        """Claim messages for ``claim_ttl`` seconds. Wait up to ``wait`` seconds for the first.

        Both are rounded up to whole seconds. With ``claim_ttl=0``, messages are returned without being claimed.

        Raises: InvalidOptionError, ServiceError.
        """
        waiting = ceil(required_seconds(wait, "wait"))
        parameters = {"ttl": _whole(claim_ttl), "limit": _limit(limit), **({"wait": waiting} if waiting else {})}
        return _messages(await self._request("GET", f"{_part(queue)}/poll", parameters, server_wait=waiting))

    async def peek(self, queue: str, limit: int = 10) -> list[ServiceMessage]:
        """Show messages, including claimed ones. Raises: InvalidOptionError, ServiceError."""
        return _messages(await self._request("GET", f"{_part(queue)}/peek", {"limit": _limit(limit)}))

    async def acknowledge(self, queue: str, message_ids: Collection[str]) -> None:
        """Remove polled messages. The call may be repeated. Raises: InvalidOptionError, ServiceError."""
        await self._command("POST", f"{_part(queue)}/ack", content=_ids(message_ids))

    async def renew(self, queue: str, message_ids: Collection[str], claim_ttl: Seconds = 30) -> None:
        """Extend claims to ``claim_ttl`` seconds from now, rounded up to whole seconds; 0 ends them.

        Raises: InvalidOptionError, ServiceError.
        """
        await self._command("POST", f"{_part(queue)}/renew", {"ttl": _whole(claim_ttl)}, content=_ids(message_ids))

    # -- queues

    async def get_message_count(self, queue: str) -> int:
        """Count the messages. Raises: ServiceError."""
        return _number(await self._request("GET", f"{_part(queue)}/size"))

    async def get_message_count_up_to(self, queue: str, limit: int) -> int:
        """Count the messages, exactly up to ``limit``. Raises: InvalidOptionError, ServiceError."""
        return _number(await self._request("GET", f"{_part(queue)}/size", {"limit": _limit(limit)}))

    async def get_claim_count(self, queue: str) -> int:
        """Count the claimed messages. Raises: ServiceError."""
        return _number(await self._request("GET", f"{_part(queue)}/claimcount"))

    async def unclaim_all(self, queue: str) -> None:
        """End all claims. Raises: ServiceError."""
        await self._command("POST", f"{_part(queue)}/unclaimall")

    async def purge(self, queue: str) -> None:
        """Remove all messages that were put before the call, and wait for the end.

        Raises: ServiceError: some may be left; call it again.
        """
        tokens: dict[str, None] = {}  # of the servers that purge the queue: each request may go to another one
        while True:  # the server lets each request wait for some seconds
            response = await self._confirmed("DELETE", _part(queue), {"purge": ",".join(tokens)} if tokens else None)
            if response.status_code != _GOES_ON:
                return
            if token := response.headers.get("X-Purge"):
                tokens[token] = None

    async def move_async(self, source: str, target: str) -> str:
        """Start a move of all messages to another queue, and return its reference. Raises: ServiceError."""
        answer = await self._request("POST", "_move", {"from": _name(source), "to": _name(target)})
        if not isinstance(answer, dict) or not isinstance(reference := answer.get("id"), str):
            msg = f"the response to a move has no reference: {_shown(answer)}"
            raise ServiceError(msg)
        return reference

    async def get_move_status(self, reference: str) -> ServiceMove:
        """Return the state of a move. Raises: UnknownMoveReferenceError, ServiceError."""
        answer = await self._request("GET", f"_move/{_part(reference, 'reference')}")
        match answer:
            case {"from": str(source), "to": str(target), "status": str(status)}:
                return ServiceMove(source, target, status)
            case _:
                msg = f"the response is not the status of a move: {_shown(answer)}"
                raise ServiceError(msg)

    # -- inside

    async def _command(
        self, method: str, path: str, parameters: Mapping[str, str | int] | None = None, *, content: bytes | None = None
    ) -> None:
        """Send a request that changes something. Raises: ServiceError: no service confirms it."""
        await self._confirmed(method, path, parameters, content=content)

    async def _confirmed(
        self, method: str, path: str, parameters: Mapping[str, str | int] | None = None, *, content: bytes | None = None
    ) -> httpx.Response:
        """Send a request that changes something, and return the response. Raises: as `_command`."""
        response = await self._send(method, path, parameters, content=content)
        match _answer(response):
            case {"success": True}:
                return response
            case answer:
                msg = f"{_request_line(response)}: the response does not confirm it: {_shown(answer)}"
                raise ServiceError(msg, response.status_code)

    async def _request(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str | int] | None = None,
        *,
        content: bytes | None = None,
        server_wait: float = 0.0,
    ) -> JsonValue:
        return _answer(await self._send(method, path, parameters, content=content, server_wait=server_wait))

    async def _send(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str | int] | None = None,
        *,
        content: bytes | None = None,
        server_wait: float = 0.0,
    ) -> httpx.Response:
        headers = {} if content is None else {"Content-Type": "application/json"}
        timeout = self._timeout + server_wait
        send = partial(self._http.request, method, params=parameters, content=content, headers=headers, timeout=timeout)
        trouble: ServiceError = ServiceUnavailableError(f"no server of {self._kind} is known")
        failed: set[str] = set()  # so that a retry does not choose the same dead server
        for attempt in range(RETRIES + 1):
            if attempt:
                longest = min(LONGEST_DELAY, FIRST_DELAY * 2**attempt)
                await asyncio.sleep(random.uniform(FIRST_DELAY, longest))  # noqa: S311 - it spreads load
            try:
                urls = await self._urls()
                if self._http.is_closed:  # also by another task during a delay
                    raise ServiceError("this client is closed")
                if urls:
                    url = random.choice([known for known in urls if known not in failed] or urls)  # noqa: S311 - it spreads load
                    failed.add(url)
                    return await _answered(send, f"{url}/{path}")
            except ServiceUnavailableError as error:
                trouble = error
        raise trouble

    async def _urls(self) -> Sequence[str]:
        """Return the servers' addresses. Raises: ServiceUnavailableError: the lookup failed, or took too long."""
        try:
            async with asyncio.timeout(self._timeout):
                return await self._discovery.urls(self._kind)
        except TimeoutError as error:
            msg = f"the addresses of the servers of {self._kind} were not known within {self._timeout:g} s"
            raise ServiceUnavailableError(msg) from error


async def _answered(send: Callable[[str], Awaitable[httpx.Response]], url: str) -> httpx.Response:
    """Send a request to a server; return a response of success.

    Raises: ServiceUnavailableError: the request may be repeated; ServiceError: it was refused.
    """
    try:
        response = await send(url)
    except httpx.RequestError as error:
        msg = f"{error.request.method} {url}: {error!r}"
        raise ServiceUnavailableError(msg) from error
    except (httpx.InvalidURL, UnicodeError) as error:
        msg = f"no request can be sent to {_shown(url)}: {error}"
        raise ServiceError(msg) from error
    if not response.is_success:
        raise _error_of(response)
    return response


def _error_of(response: httpx.Response) -> ServiceError:
    name = response.headers.get(EXCEPTION_HEADER, "")
    kind = _BY_NAME.get(name, ServiceError)
    if response.status_code >= _SERVER_TROUBLE:
        kind = ServiceUnavailableError
    elif response.status_code == _FORBIDDEN:
        kind = UnauthorizedError
    text = response.text[:_SHOWN]
    if response.has_redirect_location:
        text = "redirects elsewhere; give the address of the service itself"
    elif response.status_code == _NOT_FOUND and not name:
        text += "; is this service at another address? Give the address before /queue/1, such as 'http://host:8080'"
    return kind(f"{_request_line(response)}: {response.status_code} {text}", response.status_code)


def _request_line(response: httpx.Response) -> str:
    """Return the method and the path of a request, without the query."""
    return f"{response.request.method} {response.request.url.raw_path.partition(b'?')[0].decode('ascii')}"


def _answer(response: httpx.Response) -> JsonValue:
    try:
        answer: JsonValue = response.json()
    except ValueError as error:
        msg = f"{_request_line(response)}: the response is not JSON"
        raise ServiceError(msg, response.status_code) from error
    return answer


def _number(answer: JsonValue) -> int:
    if type(answer) is not int:
        msg = f"the response is not a number: {_shown(answer)}"
        raise ServiceError(msg)
    return answer


def _messages(answer: JsonValue) -> list[ServiceMessage]:
    messages: list[ServiceMessage] = []
    for message in answer if isinstance(answer, list) else [None]:
        match message:
            case {"id": str(id), "payload": payload}:
                messages.append(ServiceMessage(id, payload))
            case _:
                msg = f"the response is not an array of messages: {_shown(answer)}"
                raise ServiceError(msg)
    return messages


def _shown(answer: JsonValue) -> str:
    return repr(answer)[:_SHOWN]


def _name(name: str, what: str = "queue") -> str:
    """Return a name that can be sent. Raises: InvalidOptionError."""
    if not isinstance(cast("object", name), str) or not name or name.encode(errors="replace").decode() != name:
        msg = f"{what}={name!r}: give a non-empty str that UTF-8 can encode"
        raise InvalidOptionError(msg)
    return name


def _part(name: str, what: str = "queue") -> str:
    """Return a name as one segment of a path, with special characters escaped. Raises: InvalidOptionError."""
    quoted = quote(_name(name, what), safe="")
    return quoted.replace(".", "%2E") if set(name) == {"."} else quoted


def _json(value: JsonValue) -> bytes:
    try:
        return json.dumps(value, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        too_long = isinstance(error, ValueError) and "integer string conversion" in str(error)
        reason = f"an integer has more than {sys.get_int_max_str_digits()} digits" if too_long else error
        msg = f"the message cannot be encoded as JSON: {reason}"
        raise PayloadError(msg) from error


def _is_address(text: object) -> bool:
    if not isinstance(text, str) or not text.isprintable() or not {" ", "?", "#"}.isdisjoint(text):
        return False
    try:
        parts, host = urlsplit(text), httpx.URL(text).host  # which refuses some others
        return parts.scheme in {"http", "https"} and bool(parts.hostname and host) and parts.port != 0
    except (ValueError, httpx.InvalidURL):
        return False


def _matches(url: str, pattern: str) -> bool:
    """Return whether a pattern matches the host of an address, and the scheme if the pattern has one."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    return fnmatchcase(f"{parts.scheme}://{host}" if "://" in pattern else host, pattern.lower())


def _whole(value: Seconds) -> int:
    return ceil(required_seconds(value, "claim_ttl"))  # never 0 for a positive time, since 0 claims nothing or releases


def _listed(queue: str, messages: Sequence[JsonValue]) -> list[JsonValue]:
    return list(collection(messages, f"queue {queue!r}: send_all", "messages"))


def _limit(value: int) -> int:
    """Return a number of messages that can be sent; the server checks its range. Raises: InvalidOptionError."""
    if isinstance(value, bool) or not isinstance(cast("object", value), int):
        msg = f"limit={value!r}: give an integer"
        raise InvalidOptionError(msg)
    return int(value)


def _ids(message_ids: Collection[str]) -> bytes:
    ids = [*collection(message_ids, "message_ids", "message ids")]
    for given in ids:
        if not isinstance(cast("object", given), str):
            msg = f"message_ids: give the `id` of each message, a str, not {type(cast('object', given)).__name__}"
            raise InvalidOptionError(msg)
    return _json([*ids])


def _is_key(key: object) -> bool:
    return isinstance(key, str) and bool(key) and key.isascii() and key.isprintable() and " " not in key
