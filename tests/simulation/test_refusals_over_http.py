"""A request that ZooKeeper refuses is answered with 503 and the kind of refusal; the service continues."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from aiozkqueue.http import Settings, create_app
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import run_virtual
from aiozkqueue.testing.simulator.cluster import make_cluster
from aiozkqueue.zookeeper import Create, MultiError, NoAuthError, QuotaExceededError
from aiozkqueue.zookeeper.wire import error_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    import aiozkqueue as zq
    from aiozkqueue.zookeeper import Operation

#: A code that ZooKeeper does not document.
UNKNOWN = -77
pytestmark = pytest.mark.timeout(60)


def serve(program: Callable[[httpx.AsyncClient, zq.QueueSession], Awaitable[None]]) -> None:
    """Run a program with a client of the service, and the session of the service, on a simulated ensemble."""

    async def main() -> None:
        cluster = make_cluster(seed=0)
        cluster.ensemble.delays.network = partial(float, 0.001)
        sessions: list[zq.QueueSession] = []

        @asynccontextmanager
        async def connecting() -> AsyncIterator[zq.QueueSession]:
            async with cluster.connect() as session:
                sessions.append(session)
                yield session

        app = create_app(connecting, Settings(anonymous=("queue|*|*",)))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
        ):
            assert (await client.post("/queue/1/q/send", json=1)).status_code == httpx.codes.OK
            await program(client, sessions[0])

    run_virtual(main, limit=3600)


def test_an_undocumented_error_is_answered_as_a_refusal_of_zookeeper() -> None:
    async def program(client: httpx.AsyncClient, session: zq.QueueSession) -> None:
        zookeeper: Any = core_of(session).zookeeper  # its methods are replaced
        exists = zookeeper.exists

        async def refusing(path: str, **options: Any) -> Any:  # passes all options on
            if path.endswith("/q/items"):
                raise error_of(UNKNOWN, path)
            return await exists(path, **options)

        zookeeper.exists = refusing
        answer = await client.delete("/queue/1/q")
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
        assert answer.json()["message"].startswith("ZooKeeper refuses this; ")
        zookeeper.exists = exists
        assert (await client.delete("/queue/1/q")).json() == {"success": True}

    serve(program)


def test_a_refusal_by_a_quota_is_not_reported_as_one_by_an_acl() -> None:
    async def program(client: httpx.AsyncClient, session: zq.QueueSession) -> None:
        zookeeper: Any = core_of(session).zookeeper  # its methods are replaced
        multi = zookeeper.multi

        async def refusal(index: int, path: str) -> None:
            raise MultiError(index, QuotaExceededError(path))

        def refusing(operations: Sequence[Operation], **options: Any) -> Any:  # passes all options on
            for index, operation in enumerate(operations):
                if isinstance(operation, Create):
                    return refusal(index, operation.path)
            return multi(operations, **options)

        zookeeper.multi = refusing
        answer = await client.post("/queue/1/q/send", json=2)
        assert answer.status_code == 503
        assert answer.json()["message"].startswith("a quota of ZooKeeper does not allow this; ")
        zookeeper.multi = multi
        assert (await client.post("/queue/1/q/send", json=2)).json() == {"success": True}

    serve(program)


def test_moves_that_may_not_be_listed_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def program(_: httpx.AsyncClient, session: zq.QueueSession) -> None:
        zookeeper: Any = core_of(session).zookeeper  # its methods are replaced
        children, refused = zookeeper.children, list[str]()

        async def refusing(path: str, **options: Any) -> Any:  # passes all options on
            if path.endswith("/.moves"):
                refused.append(path)
                raise NoAuthError(path)
            return await children(path, **options)

        zookeeper.children = refusing
        await asyncio.sleep(60)
        assert 1 < len(refused) < 20
        assert caplog.text.count("unfinished moves are not continued") == 1

    serve(program)
