"""EmoDB's QueueService and DedupQueueService over HTTP: each operation of their contract is a function here.

A request is checked in EmoDB's order: the route and the content type, the key, the parameters and the body, their
ranges.
"""

from __future__ import annotations

import functools
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from aiozkqueue.errors import InvalidOptionError, UnknownMoveError

from . import methods
from .core import bodies, parameters, problems
from .core.permissions import Verb
from .core.remedies import text_of
from .core.splitting import Shape, loads
from .core.trace_context import trace_context
from .messages import MessagesResponse
from .request_messages import RequestMessages
from .waiting import while_wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from .core.backend import Backend
    from .core.gate import Gate
    from .core.names import Kind
    from .core.service import QueueService

    Handler = Callable[..., Coroutine[Any, Any, Response]]

DEFAULT_TTL: Final = 30
DEFAULT_LIMIT: Final = 10
_STATUS: Final = {"running": "IN_PROGRESS", "done": "COMPLETE", "failed": "ERROR"}


class Api:
    """The handlers of one service."""

    def __init__(self, backend: Backend, kind: Kind) -> None:
        self.backend = backend
        self._kind = kind
        self._small = min(bodies.SMALL, backend.settings.body_limit)
        self._purge_verb = Verb.PURGE if backend.settings.separate_purge else Verb.POLL

    @property
    def _service(self) -> QueueService:
        return self.backend.parts.services[self._kind]

    @property
    def _gate(self) -> Gate:
        return self.backend.parts.gate

    # -- putting

    async def send(self, request: Request, queue: str) -> Response:
        """Put one message, which may be any JSON."""
        _check_type(request)
        await self._gate.admit(request, Verb.POST, queue)
        sent = await self._read_messages(request, Shape.VALUE)
        parameters.check_name(queue)
        await self._service.send({queue: sent.checked()[""]}, trace_context(request.headers))
        return _ok()

    async def send_batch(self, request: Request, queue: str) -> Response:
        """Put an array of messages."""
        _check_type(request)
        await self._gate.admit(request, Verb.POST, queue)
        messages = (await self._read_messages(request, Shape.ARRAY)).checked()
        named = {parameters.check_name(queue): messages.get("", [])}
        await self._service.send(named, trace_context(request.headers))
        return _ok()

    async def send_batches(self, request: Request) -> Response:
        """Put arrays of messages into several queues. All are checked before any is put."""
        _check_type(request)
        caller = await self._gate.caller(request)
        may_post = functools.partial(caller.permissions.allows, Verb.POST)
        sent = await self._read_messages(request, Shape.ARRAYS, may_post)
        for queue in sent.queues:
            parameters.check_name(queue)
        await self._service.send(sent.checked(), trace_context(request.headers))
        return _ok()

    async def _read_messages(
        self, request: Request, shape: Shape, allowed: Callable[[str], bool] = lambda _: True
    ) -> RequestMessages:
        sent = RequestMessages(self.backend.settings.batch_limit, allowed)
        limit = self._small if shape is Shape.VALUE else self.backend.settings.body_limit
        await bodies.read(request, limit, shape, self.backend.loop_share, sent.take)
        sent.check_allowed()
        return sent

    async def _read_ids(self, request: Request) -> list[str]:
        ids: list[str] = []

        def take(_: str, text: str | None) -> None:
            value = loads(text or "")
            if not isinstance(value, str):
                raise problems.malformed("Unable to process JSON: an array of strings is needed")
            ids.append(value)

        await bodies.read(request, self._small, Shape.ARRAY, self.backend.loop_share, take)
        return ids

    # -- consuming

    async def poll(self, request: Request, queue: str) -> Response:
        """Claim messages for a time, and wait up to ``wait`` seconds for the first. A HEAD claims nothing."""
        await self._gate.admit(request, Verb.POLL, queue)
        query = request.query_params
        ttl = parameters.integer(query, "ttl", DEFAULT_TTL)
        limit = parameters.integer(query, "limit", DEFAULT_LIMIT)
        wait, read_only = parameters.integer(query, "wait", 0), methods.is_read_only(request)
        polling = self._service.poll(
            parameters.check_name(queue),
            lifetime=0 if read_only else parameters.check_ttl(ttl),
            limit=parameters.check_limit(limit),
            wait=0 if read_only else parameters.check_wait(wait),
        )
        polled = (
            await while_wanted(request, self.backend.leaving, polling) if wait and not read_only else await polling
        ) or []

        async def release() -> None:
            await self._service.release(queue, polled)

        return MessagesResponse(polled, release if polled else None)

    async def peek(self, request: Request, queue: str) -> Response:
        """Show messages, including claimed ones."""
        await self._gate.admit(request, Verb.POLL, queue)
        limit = parameters.integer(request.query_params, "limit", DEFAULT_LIMIT)
        return MessagesResponse(await self._service.peek(parameters.check_name(queue), parameters.check_limit(limit)))

    async def acknowledge(self, request: Request, queue: str) -> Response:
        """Remove messages by their ids."""
        _check_type(request)
        await self._gate.admit(request, Verb.POLL, queue)
        ids = await self._read_ids(request)
        with _illegal_ids():
            await self._service.acknowledge(parameters.check_name(queue), ids)
        return _ok()

    async def renew(self, request: Request, queue: str) -> Response:
        """Extend claims, or end them."""
        _check_type(request)
        await self._gate.admit(request, Verb.POLL, queue)
        ttl = parameters.integer(request.query_params, "ttl", DEFAULT_TTL)
        ids = await self._read_ids(request)
        with _illegal_ids():
            await self._service.renew(parameters.check_name(queue), ids, parameters.check_ttl(ttl))
        return _ok()

    # -- status and administration

    async def size(self, request: Request, queue: str) -> Response:
        """Count the messages."""
        await self._gate.admit(request, Verb.GET_STATUS, queue)
        limit = parameters.optional_integer(request.query_params, "limit")
        if limit is not None:
            parameters.check_limit(limit, None)
        return JSONResponse(await self._service.size(parameters.check_name(queue)))

    async def claim_count(self, request: Request, queue: str) -> Response:
        """Count the claimed messages."""
        await self._gate.admit(request, Verb.GET_STATUS, queue)
        return JSONResponse(await self._service.claimed(parameters.check_name(queue)))

    async def unclaim_all(self, request: Request, queue: str) -> Response:
        """End all claims."""
        await self._gate.admit(request, Verb.POLL, queue)
        await self._service.unclaim_all(parameters.check_name(queue))
        return _ok()

    async def purge(self, request: Request, queue: str) -> Response:
        """Remove all messages. After a 202 the removal continues, and repeating the request waits for its end.

        The header `X-Purge` of a 202 is the parameter `purge` of a request that waits for this removal, instead of for
        the messages put since, too; it may have several, separated by commas.
        """
        await self._gate.admit(request, self._purge_verb, queue)
        tokens = request.query_params.get("purge", "").split(",")
        going = await self._service.wait_for_purge(parameters.check_name(queue), tokens)
        return _ok() if going is None else JSONResponse({"success": True}, 202, {"X-Purge": going})

    async def move(self, request: Request) -> Response:
        """Start a move of all messages of one queue to another."""
        caller = await self._gate.caller(request)
        source, target = request.query_params.get("from"), request.query_params.get("to")
        if not source or not target:
            raise problems.malformed("query parameters 'from' and 'to' are required")
        if not caller.permissions.allows(Verb.POLL, source) or not caller.permissions.allows(Verb.POST, target):
            raise problems.unauthorized()
        if parameters.check_name(source) == parameters.check_name(target):
            raise problems.illegal("cannot move queue to itself")
        reference = await self._service.move(source, target)
        return JSONResponse({"id": f"{self._kind}-{reference}"})

    async def move_status(self, request: Request, reference: str) -> Response:
        """Return the progress of a move."""
        await self._gate.caller(request)
        kind, _, own = reference.partition("-")
        if kind != self._kind:
            raise problems.unknown_move(reference)
        try:
            status = await self._service.move_status(own)
        except UnknownMoveError as error:
            raise problems.unknown_move(reference) from error
        names = [self._service.http_name(name) for name in (status.source, status.target)]
        return JSONResponse({"from": names[0], "to": names[1], "status": _STATUS[status.state]})


def router(api: Api, kind: Kind) -> APIRouter:
    """Return the routes of one service, below ``/<kind>/1``."""
    routes = APIRouter(prefix=f"/{kind}/1", tags=[str(kind)])
    table: tuple[tuple[str, str, Handler, dict[str, Any], dict[str, Any]], ...] = (
        # Fixed names come first: the name of a queue does not begin with a single underscore.
        ("POST", "/_sendbatch", api.send_batches, _OK, _takes(_BATCHES)),
        ("POST", "/_move", api.move, _REFERENCE, _with(_text("from"), _text("to"))),
        ("GET", "/_move/{reference}", api.move_status, _MOVE, {}),
        ("POST", "/{queue}/send", api.send, _OK, _takes({})),
        ("POST", "/{queue}/sendbatch", api.send_batch, _OK, _takes({"type": "array", "items": {}})),
        ("GET", "/{queue}/poll", api.poll, _MESSAGES, _with(_TTL, _LIMIT, _WAIT)),
        ("GET", "/{queue}/peek", api.peek, _MESSAGES, _with(_LIMIT)),
        ("POST", "/{queue}/ack", api.acknowledge, _OK, _takes(_IDS)),
        ("POST", "/{queue}/renew", api.renew, _OK, {**_takes(_IDS), **_with(_TTL)}),
        ("GET", "/{queue}/size", api.size, _NUMBER, _with(_number("limit", None, 1, None))),
        ("GET", "/{queue}/claimcount", api.claim_count, _NUMBER, {}),
        ("POST", "/{queue}/unclaimall", api.unclaim_all, _OK, {}),
        ("DELETE", "/{queue}", api.purge, _OK, _with({**_text("purge"), "required": False})),
    )
    for method, path, endpoint, answered, described in table:
        routes.add_api_route(
            path,
            _counted(api.backend, kind, endpoint.__name__, _limited(api.backend, endpoint)),
            methods=[method],
            response_model=None,
            operation_id=f"{kind}_{endpoint.__name__}",
            summary=(endpoint.__doc__ or "").strip().partition("\n")[0],
            openapi_extra={**described, "security": [{"header": []}, {"query": []}]},
            responses={200: _json("Done.", answered), **(_GOES_ON if method == "DELETE" else {}), **_RESPONSES},
        )
    return routes


def _limited(backend: Backend, handler: Handler) -> Handler:
    """Limit the time of a handler. Type checkers need one type for handlers with different parameters."""
    return backend.limited(handler)


def _counted(backend: Backend, kind: Kind, operation: str, handler: Handler) -> Handler:
    """Return a handler whose responses are counted if metrics are enabled."""
    metrics = backend.metrics
    if metrics is None:
        return handler

    @functools.wraps(handler)
    async def counted(request: Request, **path: str) -> Response:
        start, status = time.perf_counter(), 500
        try:
            response = await handler(request, **path)
            status = response.status_code
            return response
        finally:
            metrics.observe(kind, operation, status, time.perf_counter() - start)

    return counted


@contextmanager
def _illegal_ids() -> Iterator[None]:
    """Refuse a request whose message ids the service refuses. Raises: ProblemError."""
    try:
        yield
    except InvalidOptionError as error:
        raise problems.illegal(text_of(error)) from error


def _check_type(request: Request) -> None:
    """Refuse a body that is not declared as JSON or has an unknown encoding. Raises: ProblemError."""
    parameters.check_json_type(request)
    bodies.encoding_of(request)


def _ok() -> Response:
    return JSONResponse({"success": True})


# -- OpenAPI's descriptions of requests, which the handlers read themselves


def _takes(schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _with(*described: dict[str, Any]) -> dict[str, Any]:
    return {"parameters": list(described)}


def _number(name: str, default: int | None, least: int, most: int | None) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer", "minimum": least}
    if most is not None:
        schema["maximum"] = most
    if default is not None:
        schema["default"] = default
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _text(name: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": True, "schema": {"type": "string"}}


_TTL: Final = _number("ttl", DEFAULT_TTL, 0, parameters.MOST_TTL)
_LIMIT: Final = _number("limit", DEFAULT_LIMIT, 1, parameters.MOST_MESSAGES)
_WAIT: Final = _number("wait", 0, 0, parameters.MOST_WAIT)
_IDS: Final[dict[str, Any]] = {"type": "array", "items": {"type": "string"}}
_BATCHES: Final[dict[str, Any]] = {"type": "object", "additionalProperties": {"type": "array", "items": {}}}
_OK: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"success": {"const": True}},
    "required": ["success"],
}
_MESSAGES: Final[dict[str, Any]] = {
    "type": "array",
    "items": {"type": "object", "properties": {"id": {"type": "string"}, "payload": {}}, "required": ["id", "payload"]},
}
_NUMBER: Final[dict[str, Any]] = {"type": "integer", "minimum": 0}
_REFERENCE: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"id": {"type": "string"}},
    "required": ["id"],
}
_MOVE: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "from": {"type": "string"},
        "to": {"type": "string"},
        "status": {"enum": list(_STATUS.values())},
    },
    "required": ["from", "to", "status"],
}
SECURITY: Final[dict[str, Any]] = {
    "header": {"type": "apiKey", "in": "header", "name": "X-BV-API-Key"},
    "query": {"type": "apiKey", "in": "query", "name": "APIKey"},
}


def _json(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


_PROBLEM: Final[dict[str, Any]] = {"type": "object", "properties": {"message": {"type": "string"}}}
_GOES_ON: Final[dict[int | str, dict[str, Any]]] = {
    202: _json("The removal continues; repeat the request to wait for its end.", _OK)
}
_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    400: {
        "description": "A parameter, a name or the body is invalid.",
        "content": {"application/json": {"schema": _PROBLEM}, "text/plain": {"schema": {"type": "string"}}},
    },
    403: _json("The key is missing or unknown, or does not allow this.", {"type": "object"}),
    404: _json("There is no such move, or no such path.", {"type": "object"}),
    405: _json("The path does not support this method.", {"type": "object"}),
    408: _json("The body did not arrive in time.", _PROBLEM),
    409: _json("The queue's configuration does not allow this.", _PROBLEM),
    413: _json("The body is too large, or has too many messages.", _PROBLEM),
    415: _json("The content type is not JSON, or the Content-Encoding is not gzip.", _PROBLEM),
    422: _json("The body is empty.", {"type": "object"}),
    429: _json("Too many requests.", _PROBLEM),
    503: _json("ZooKeeper does not answer, or cannot do this now; try again.", _PROBLEM),
}
