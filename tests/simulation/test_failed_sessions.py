"""Sessions that fail permanently: by a defect, or because their credentials are refused when they reconnect."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.schedule import Jobs, Scheduler
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import run_virtual
from aiozkqueue.testing.simulator import Fault, Kind
from aiozkqueue.testing.simulator.cluster import make_cluster
from aiozkqueue.zookeeper import AuthFailedError, Create, SetData

if TYPE_CHECKING:
    from aiozkqueue.testing.simulator import Request
    from aiozkqueue.testing.simulator.server import ServerConnection


async def fail() -> None:
    msg = "a defect"
    raise RuntimeError(msg)


@pytest.mark.parametrize("service", ["listener", "scheduler"])
def test_the_block_of_a_service_raises_the_error_and_other_sessions_get_the_messages(service: str) -> None:
    async def main() -> None:
        cluster = make_cluster(seed=0)
        async with cluster.connect() as other, cluster.connect() as session:
            await other.queue("jobs").put(b"1")
            held = await session.transaction(autocommit=False).__aenter__()
            assert await held.take(session.queue("jobs"), timeout=5) is not None

            async def ignore(_: zq.Delivery[bytes]) -> None:
                pass

            running = Scheduler(session) if service == "scheduler" else session.listener(session.queue("x"), ignore)
            with pytest.raises(zq.SessionClosedError, match="failed"):
                async with running:
                    core_of(session).tasks.spawn(fail, name="with a defect")
                    await asyncio.sleep(3600)
            async with other.transaction() as tx:
                assert await tx.take(other.queue("jobs"), timeout=60) is not None

    run_virtual(main)


@pytest.mark.parametrize("fault", [Fault.LOST_BEFORE, Fault.LOST_AFTER])
@pytest.mark.parametrize("bundled", [False, True])
def test_a_commit_in_doubt_when_the_credentials_are_refused_is_unknown(fault: Fault, *, bundled: bool) -> None:
    async def main() -> None:
        cluster = make_cluster(seed=0)
        async with cluster.connect() as other, cluster.connect(name="refused") as session:
            jobs = session.queue("jobs")
            await other.queue("jobs").configure(zq.QueueConfig(bundle=2 if bundled else 1))
            await other.queue("jobs").put_many([b"1", b"2"])
            zookeeper: Any = core_of(session).zookeeper

            async def refuse(**_: object) -> None:
                raise AuthFailedError("the server refused the credentials")

            def judge(connection: ServerConnection, request: Request) -> Fault | None:
                commits = request.kind is Kind.MULTI and isinstance(request.argument[0], SetData)
                return fault if commits and connection.client.name == "refused" else None

            async with session.transaction(autocommit=False) as tx:
                assert await tx.take(jobs, timeout=5) is not None
                zookeeper.session._reconnect = refuse
                cluster.ensemble.judge = judge
                with pytest.raises(zq.OutcomeUnknownError, match="credentials"):
                    await tx.commit()
                assert tx.outcome is zq.Outcome.UNKNOWN
            with pytest.raises(zq.AccessDeniedError):  # nothing of this was sent
                await jobs.put(b"3")
            await asyncio.sleep(60)
            assert await other.queue("jobs").size() == (1 if fault is Fault.LOST_AFTER else 2)

    run_virtual(main)


@pytest.mark.parametrize("fault", [Fault.LOST_BEFORE, Fault.LOST_AFTER])
def test_a_declaration_in_doubt_when_no_server_answers_is_unknown(fault: Fault) -> None:
    async def main() -> None:
        cluster = make_cluster(seed=0)
        async with cluster.connect(name="cut off") as session:
            jobs = Jobs(session)
            await jobs.add("first", "0 3 * * *", session.queue("jobs"), b"1")
            zookeeper: Any = core_of(session).zookeeper

            async def find_no_server(**_: object) -> None:
                pass

            def judge(_: ServerConnection, request: Request) -> Fault | None:
                if request.kind is not Kind.MULTI or not isinstance(request.argument[-1], Create):
                    return None
                zookeeper.session._reconnect = find_no_server
                return fault

            cluster.ensemble.judge = judge
            with pytest.raises(zq.OutcomeUnknownError, match="may have been applied"):
                await jobs.declare("second", "0 3 * * *", session.queue("jobs"), b"1")

    run_virtual(main)
