"""The transaction of a request is committed before its response is sent, or rolled back. The response shows which."""

from __future__ import annotations

import asyncio
from asyncio import TaskGroup
from collections import deque
from contextlib import asynccontextmanager
from threading import Event
from typing import TYPE_CHECKING, Annotated

import httpx
import pytest
from anyio import to_thread
from fastapi import BackgroundTasks, FastAPI, HTTPException, WebSocket
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request  # noqa: TC002 - FastAPI reads annotations at run time
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import aiozkqueue as zq
from aiozkqueue import errors
from aiozkqueue.errors import QueueError, TransactionClosedError
from aiozkqueue.fastapi import (
    SessionDep,
    TransactionDep,
    error_handlers,
    get_session,
    in_transaction,
    lifespan,
    session_of,
    state,
)
from tests.faults.account import multi_of
from tests.web.conftest import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.middleware.base import RequestResponseEndpoint
    from starlette.types import Message, Receive, Scope, Send

    from aiozkqueue.testing import ZooKeeperProxy
    from tests.integration.queue.conftest import Locks, Opener
    from tests.web.conftest import Calling


#: The status of each error. All other errors are errors of the program, with the status 500.
STATUSES: dict[type[QueueError], int] = {
    errors.NotCommittedError: 503,
    errors.SessionExpiredError: 503,
    errors.ClaimLostError: 503,
    errors.ItemNotEmptyError: 503,
    errors.QueueFullError: 503,
    errors.ConflictError: 503,
    errors.ConnectionLostError: 503,
    errors.SessionClosedError: 503,
    errors.NotFoundError: 404,
    errors.UnknownMoveError: 404,
    errors.AlreadyExistsError: 409,
    errors.DuplicateKeyError: 409,
    errors.QueueInUseError: 409,
    errors.MessageTooLargeError: 413,
    errors.TransactionTooLargeError: 413,
    errors.NoReplyError: 504,
    errors.OutcomeUnknownError: 504,
}


def _errors() -> list[type[QueueError]]:
    found = [getattr(errors, name) for name in errors.__all__]
    return [kind for kind in found if issubclass(kind, QueueError)]


def _app() -> FastAPI:
    """Return an application in which each path is one way for a request to end."""
    app = FastAPI(exception_handlers=error_handlers)

    @app.post("/move", status_code=202)
    async def move(tx: TransactionDep, session: SessionDep) -> str | None:
        message = await tx.take(session.queue("jobs"))
        return tx.put("results", b"moved") if message is not None else None

    @app.post("/refused")
    async def refused(tx: TransactionDep, session: SessionDep) -> None:
        await tx.take(session.queue("jobs"))
        tx.put("results", b"never")
        raise HTTPException(409, "no")

    @app.post("/failed")
    async def failed(tx: TransactionDep, session: SessionDep) -> None:
        await tx.take(session.queue("jobs"))
        tx.put("results", b"never")
        msg = "a defect"
        raise RuntimeError(msg)

    @app.post("/robbed")
    async def robbed(tx: TransactionDep, session: SessionDep) -> str:
        await tx.take(session.queue("jobs"))
        tx.put("results", b"never")
        await session.queue("jobs").admin.release_claims()
        return "done"

    @app.post("/unique")
    async def unique(tx: TransactionDep) -> str:
        return tx.put("results", b"one", key="the same", unique=True)

    @app.post("/call")
    async def call(session: SessionDep) -> bytes:
        return await session.queue("jobs").call(b"job", timeout=0.1)

    @app.post("/settled")
    async def settled(tx: TransactionDep) -> str:
        tx.put("results", b"never")
        await tx.rollback()
        return "nothing was put"

    @app.post("/later")
    async def later(tx: TransactionDep, tasks: BackgroundTasks) -> None:
        async def put() -> None:
            tx.put("results", b"too late")

        tasks.add_task(put)

    return app


async def _passed(request: Request, call_next: RequestResponseEndpoint) -> Response:
    return await call_next(request)


class Stages:
    """Records the contents of the server when the first byte of a response leaves the application."""

    def __init__(self, app: FastAPI, queue: zq.Queue[bytes]) -> None:
        self._app = app
        self._queue = queue
        self.at_start: list[int] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.at_start.append(await self._queue.size())
            await send(message)

        await self._app(scope, receive, noting)


async def test_puts_of_a_request_are_stored_before_any_of_its_response_is_sent(
    calling: Calling, session: zq.QueueSession, open_session: Opener
) -> None:
    await session.queue("jobs").put(b"job")
    other = await open_session()
    stages = Stages(app := _app(), other.queue("results"))
    await calling(app)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(stages), base_url="http://app") as client:
        answer = await client.post("/move")
    assert answer.status_code == 202
    assert stages.at_start == [1]
    assert [message.id for message in await other.queue("results").peek()] == [answer.json()]
    assert await other.queue("jobs").size() == 0


@pytest.mark.parametrize(("path", "status"), [("/refused", 409), ("/failed", 500)])
async def test_a_request_that_raises_is_rolled_back(
    calling: Calling, session: zq.QueueSession, locks: Locks, path: str, status: int
) -> None:
    jobs = session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(0)))
    await jobs.put(b"job")
    client = await calling(_app())
    assert (await client.post(path)).status_code == status
    assert await session.queue("results").size() == 0
    assert await locks() == []
    assert (await client.post("/move")).json() is not None


async def test_a_failed_commit_returns_an_error_that_allows_a_retry(calling: Calling, session: zq.QueueSession) -> None:
    await session.queue("jobs").put(b"job")
    client = await calling(_app())
    answer = await client.post("/robbed")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert "jobs" not in answer.text
    assert await session.queue("results").size() == 0
    assert await session.queue("jobs").size() == 1


async def test_a_failed_commit_returns_an_error_even_without_error_handlers(
    calling: Calling, session: zq.QueueSession
) -> None:
    await session.queue("jobs").put(b"job")
    app = _app()
    for kind in error_handlers:
        del app.exception_handlers[kind]
    assert (await (await calling(app)).post("/robbed")).status_code == 500


async def test_a_unique_key_in_use_returns_a_conflict(calling: Calling, session: zq.QueueSession) -> None:
    client = await calling(_app())
    first, second = [await client.post("/unique") for _ in range(2)]
    assert (first.status_code, second.status_code) == (200, 409)
    detail = "a message with this key is already waiting or being handled; nothing was applied"
    assert second.json() == {"detail": detail}
    assert await session.queue("results").size() == 1


async def test_a_call_without_a_reply_returns_the_id_of_its_message(calling: Calling, session: zq.QueueSession) -> None:
    answer = await (await calling(_app())).post("/call")
    [message] = await session.queue("jobs").peek()
    assert (answer.status_code, answer.json()["message_id"]) == (504, message.id)


async def test_requests_are_answered_while_endpoints_that_are_not_async_occupy_all_threads(
    zookeeper: str, queue_root: str, session: zq.QueueSession
) -> None:
    app = FastAPI(lifespan=lifespan(zookeeper, root=queue_root, session_timeout=20))
    release = Event()

    @app.post("/blocking")
    def blocking() -> None:
        release.wait(30)

    @app.post("/")
    async def put(tx: TransactionDep, session: SessionDep) -> str:
        return tx.put(session.queue("results"), b"result")

    limiter = to_thread.current_default_thread_limiter()
    async with (
        serving(app) as (host, port),
        httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as client,
        TaskGroup() as blocked,
    ):
        for _ in range(int(limiter.total_tokens)):
            blocked.create_task(client.post("/blocking"))
        try:
            while limiter.available_tokens:  # noqa: ASYNC110 -- no event reports it
                await asyncio.sleep(0.01)
            answer = await client.post("/", timeout=15)
        finally:
            release.set()
    assert answer.status_code == 200
    assert await session.queue("results").size() == 1


@pytest.mark.parametrize("kind", _errors(), ids=lambda kind: kind.__name__)
async def test_each_error_has_the_status_that_shows_the_client_how_to_react(
    calling: Calling, kind: type[QueueError]
) -> None:
    app = _app()

    @app.get("/error")
    async def error() -> None:
        raised = kind.__new__(kind)
        vars(raised).update(transaction_id="transaction", message_id="message")
        raise raised

    assert (await (await calling(app)).get("/error")).status_code == STATUSES.get(kind, 500)


async def test_an_endpoint_can_settle_its_transaction_itself(calling: Calling, session: zq.QueueSession) -> None:
    client = await calling(_app())
    assert (await client.post("/settled")).json() == "nothing was put"
    assert await session.queue("results").size() == 0


async def test_the_transaction_of_a_request_ends_with_its_response(calling: Calling, session: zq.QueueSession) -> None:
    transport = httpx.ASGITransport(app := _app())
    await calling(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
        with pytest.raises(TransactionClosedError):
            await client.post("/later")
    assert await session.queue("results").size() == 0


async def test_a_request_waits_for_its_commit_up_to_the_commit_timeout(
    calling: Calling, open_session: Opener, session: zq.QueueSession, zookeeper_proxy: ZooKeeperProxy
) -> None:
    app = FastAPI(exception_handlers=error_handlers)

    @app.post("/")
    async def put(tx: Annotated[zq.Transaction, in_transaction(commit_timeout=0.3)]) -> str:
        return tx.put("results", b"stored, but not known to be")

    slow = await open_session(zookeeper_proxy.hosts, session_timeout=20)
    await slow.queue("results").put(b"first")
    client = await calling(app, session=slow)
    held = zookeeper_proxy.hold_reply(multi_of(b"/slot-"))
    answer = await client.post("/")
    assert answer.status_code == 504
    held.release()
    assert await slow.outcome(answer.json()["transaction_id"], timeout=30) is zq.Outcome.COMMITTED
    assert await session.queue("results").size() == 2


async def test_a_request_is_answered_at_once_while_there_is_no_connection(
    calling: Calling,
    open_session: Opener,
    session: zq.QueueSession,
    zookeeper_proxy: ZooKeeperProxy,
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = FastAPI(exception_handlers=error_handlers)
    own = await open_session(zookeeper_proxy.hosts, session_timeout=20)

    async def disconnect() -> None:
        zookeeper_proxy.refuse()
        zookeeper_proxy.reset_connections()
        while own.connected:  # noqa: ASYNC110 -- no event reports it
            await asyncio.sleep(0.01)

    @app.post("/")
    async def put(tx: TransactionDep, *, cut: bool = False) -> str:
        message_id = tx.put("results", b"never stored")
        if cut:
            await disconnect()
        return message_id

    await own.queue("results").put(b"first")
    client = await calling(app, session=own)
    began = asyncio.get_running_loop().time()
    answers = [await client.post("/?cut=true"), await client.post("/")]
    assert asyncio.get_running_loop().time() - began < 5  # half the commit timeout
    assert [answer.status_code for answer in answers] == [503, 503]
    logged = [record.getMessage() for record in caplog.records if record.name == "aiozkqueue.fastapi"]
    assert logged == [], "each request of an outage, which the session logs"
    await zookeeper_proxy.listen()
    await own.queue("results").put(b"last")
    assert own.connected
    assert [message.value for message in await session.queue("results").peek()] == [b"first", b"last"]


@pytest.mark.parametrize("middlewares", [0, 1, 4])
async def test_the_transaction_of_a_disconnected_client_is_rolled_back(
    zookeeper: str, queue_root: str, session: zq.QueueSession, locks: Locks, middlewares: int
) -> None:
    await session.queue("jobs").put(b"job")
    begun, ended = asyncio.Event(), asyncio.Event()
    transactions: list[zq.Transaction] = []

    @asynccontextmanager
    async def opened(_: FastAPI) -> AsyncIterator[dict[str, zq.QueueSession]]:
        async with zq.connect(zookeeper, root=queue_root, session_timeout=20) as own:
            yield state(own)

    app = FastAPI(lifespan=opened)
    for _ in range(middlewares):
        app.add_middleware(BaseHTTPMiddleware, dispatch=_passed)

    @app.post("/")
    async def put(request: Request, tx: TransactionDep, session: SessionDep) -> None:
        assert await tx.take(session.queue("jobs")) is not None
        tx.put("results", b"result")
        transactions.append(tx)
        begun.set()
        while (await request.receive())["type"] != "http.disconnect":
            pass

    async def signal_end(scope: Scope, receive: Receive, send: Send) -> None:
        await app(scope, receive, send)
        if scope["type"] == "http":
            ended.set()

    async with serving(signal_end) as (host, port):
        _, writer = await asyncio.open_connection(host, port)
        writer.write(b"POST / HTTP/1.1\r\nHost: app\r\nContent-Length: 0\r\n\r\n")
        await asyncio.wait_for(begun.wait(), 30)
        writer.close()
        await asyncio.wait_for(ended.wait(), 30)
        assert [tx.outcome for tx in transactions] == [zq.Outcome.ROLLED_BACK]
        assert await locks() == []
    assert await session.queue("results").size() == 0
    assert await session.queue("jobs").size() == 1


async def test_a_disconnection_behind_an_unread_body_rolls_the_transaction_back(session: zq.QueueSession) -> None:
    app = FastAPI()
    app.dependency_overrides[get_session] = lambda: session
    messages: deque[Message] = deque()
    never: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    statuses: list[int] = []

    @app.post("/")
    async def put(tx: TransactionDep) -> str:
        messages.extend({"type": "http.request", "body": b"part", "more_body": True} for _ in range(3))
        messages.append({"type": "http.disconnect"})
        return tx.put("results", b"result")

    async def receive() -> Message:
        return messages.popleft() if messages else await never

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": [], "state": {}}
    await app(scope, receive, send)
    assert statuses == [499]
    assert await session.queue("results").size() == 0


async def test_a_transaction_of_a_websocket_is_refused_with_advice(session: zq.QueueSession) -> None:
    app = FastAPI()
    app.dependency_overrides[get_session] = lambda: session

    @app.websocket("/")
    async def talk(websocket: WebSocket, tx: TransactionDep) -> None:
        await websocket.accept()
        tx.put("results", b"result")

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(_: Message) -> None:
        pass

    scope = {"type": "websocket", "path": "/", "query_string": b"", "headers": [], "subprotocols": [], "state": {}}
    with pytest.raises(zq.InvalidOptionError, match=r"async with session\.transaction\(\)"):
        await app(scope, receive, send)


@pytest.mark.parametrize(
    ("error", "accepted", "extension", "sent"),
    [
        (zq.NotCommittedError, True, True, {"type": "websocket.close", "code": 1013}),
        (zq.OutcomeUnknownError, True, True, {"type": "websocket.close", "code": 1011}),
        (zq.NotCommittedError, False, False, {"type": "websocket.close", "code": 1013}),
        (zq.NotCommittedError, False, True, {"type": "websocket.http.response.start", "status": 503}),
    ],
)
async def test_an_error_in_a_websocket_closes_it_with_a_code_that_shows_the_client_how_to_react(
    error: type[QueueError], sent: dict[str, object], *, accepted: bool, extension: bool
) -> None:
    app = FastAPI(exception_handlers=error_handlers)
    messages: list[Message] = []

    @app.websocket("/")
    async def talk(websocket: WebSocket) -> None:
        if accepted:
            await websocket.accept()
        raised = error.__new__(error)
        vars(raised).update(transaction_id="transaction")
        raise raised

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        messages.append(message)

    scope = {"type": "websocket", "path": "/", "query_string": b"", "headers": [], "subprotocols": [], "state": {}}
    await app({**scope, "extensions": {"websocket.http.response": {}} if extension else {}}, receive, send)
    answers = [message for message in messages if message["type"] != "websocket.accept"]
    assert sent.items() <= answers[0].items()
    assert ("reason" in answers[0]) == (sent["type"] == "websocket.close")


async def test_an_error_in_a_websocket_whose_client_has_left_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    app = FastAPI(exception_handlers=error_handlers)
    received: deque[Message] = deque([{"type": "websocket.connect"}, {"type": "websocket.disconnect", "code": 1001}])
    messages: list[Message] = []

    @app.websocket("/")
    async def talk(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.receive()
        raise zq.NotCommittedError("the queue is full")

    async def receive() -> Message:
        return received.popleft()

    async def send(message: Message) -> None:
        messages.append(message)

    scope = {"type": "websocket", "path": "/", "query_string": b"", "headers": [], "subprotocols": [], "state": {}}
    await app(scope, receive, send)
    assert [message["type"] for message in messages] == ["websocket.accept"]
    assert "the queue is full" in caplog.text


async def test_a_request_that_is_cancelled_is_rolled_back(
    session: zq.QueueSession, calling: Calling, locks: Locks
) -> None:
    await session.queue("jobs").put(b"job")
    app = FastAPI()
    begun = asyncio.Event()

    @app.post("/")
    async def put(tx: TransactionDep, session: SessionDep) -> None:
        assert await tx.take(session.queue("jobs")) is not None
        tx.put("results", b"result")
        begun.set()
        await asyncio.Event().wait()

    client = await calling(app)
    request = asyncio.create_task(client.post("/"))
    await asyncio.wait_for(begun.wait(), 30)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert await locks() == []
    assert await session.queue("results").size() == 0
    assert await session.queue("jobs").size() == 1


async def test_a_starlette_application_has_one_session(
    zookeeper: str, queue_root: str, session: zq.QueueSession
) -> None:
    async def create(request: Request) -> Response:
        async with session_of(request).transaction() as tx:
            return JSONResponse(tx.put("results", await request.body()), 202)

    app = Starlette(
        routes=[Route("/", create, methods=["POST"])],
        lifespan=lifespan(zookeeper, root=queue_root, session_timeout=20),
    )
    async with serving(app) as (host, port), httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as client:
        answer = await client.post("/", content=b"result")
    [stored] = await session.queue("results").peek()
    assert (stored.id, stored.body) == (answer.json(), b"result")


async def test_an_application_without_a_session_gets_an_error_that_explains_the_setup() -> None:
    transport = httpx.ASGITransport(_app())
    async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
        with pytest.raises(zq.InvalidOptionError, match="lifespan="):
            await client.post("/move")


def test_invalid_options_are_refused_when_the_application_is_created() -> None:
    with pytest.raises(zq.InvalidOptionError):
        lifespan("zk1:2181", session_timeout=-1)
    with pytest.raises(zq.InvalidOptionError):
        in_transaction(commit_timeout=float("inf"))
