"""Sessions that fail permanently: by a defect, or because their credentials are refused when they reconnect."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.errors import PartlyDeniedError
from aiozkqueue.http.core.keys import Keys
from aiozkqueue.queue.commit.group_commit import FULL_WEIGHT
from aiozkqueue.schedule import Jobs, Scheduler
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import run_virtual, simulated
from aiozkqueue.testing.simulator import Fault, Kind
from aiozkqueue.testing.simulator.cluster import make_cluster
from aiozkqueue.zookeeper import AuthFailedError, Create, Delete, SetData, State

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.testing.simulator import Request
    from aiozkqueue.testing.simulator.server import ServerConnection


def refuse_credentials(session: zq.QueueSession) -> None:
    """Let the servers refuse the credentials of a session when it reconnects."""

    async def refuse(**_: object) -> None:
        raise AuthFailedError("the server has refused the credentials")

    zookeeper: Any = core_of(session).zookeeper  # the simulated client
    zookeeper.session._reconnect = refuse


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
            zookeeper: Any = core_of(session).zookeeper  # the simulated client

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


def test_a_put_is_unknown_if_the_task_that_has_just_got_it_is_cancelled() -> None:
    async def main() -> None:
        async with simulated() as cluster, cluster.connect() as session:
            jobs = session.queue("jobs")
            await jobs.put(b"opens the queue, and starts the slots")
            putting = asyncio.ensure_future(jobs.put(bytes(FULL_WEIGHT)))  # it is sent at once
            await asyncio.sleep(0)
            for task in asyncio.all_tasks():
                if "commit slot" in task.get_name():
                    task.cancel()
            async with asyncio.timeout(5):
                with pytest.raises(zq.OutcomeUnknownError):
                    await putting

    run_virtual(main)


async def reconfigure(session: zq.QueueSession) -> None:
    await session.queue("jobs").configure(zq.QueueConfig(policy=zq.ConsumeTimes(3)))


async def start_a_move(session: zq.QueueSession) -> None:
    await session.admin.moves.start("jobs", "more")


async def create_a_key(session: zq.QueueSession) -> None:
    await Keys(core_of(session)).create("shop", ["queue|post|orders"])


async def delete_a_queue(session: zq.QueueSession) -> None:
    await session.queue("jobs").admin.delete(force=True)


@pytest.mark.parametrize("fault", [Fault.LOST_BEFORE, Fault.LOST_AFTER])
@pytest.mark.parametrize("change", [reconfigure, start_a_move, delete_a_queue, create_a_key])
def test_a_change_by_an_operator_in_doubt_when_the_credentials_are_refused_is_unknown(
    change: Callable[[zq.QueueSession], Awaitable[None]], fault: Fault
) -> None:
    async def main() -> None:
        cluster = make_cluster(seed=0)
        async with cluster.connect() as other, cluster.connect(name="refused") as session:
            await other.queue("jobs").put(b"1")
            await session.queue("jobs").size()
            await Keys(core_of(other)).create("other", ["queue|post|orders"])
            zookeeper: Any = core_of(session).zookeeper  # the simulated client

            async def refuse(**_: object) -> None:
                raise AuthFailedError("the server refused the credentials")

            def judge(connection: ServerConnection, request: Request) -> Fault | None:
                return fault if request.kind is Kind.MULTI and connection.client.name == "refused" else None

            zookeeper.session._reconnect = refuse
            cluster.ensemble.judge = judge
            with pytest.raises(zq.OutcomeUnknownError, match="credentials"):
                await change(session)
            with pytest.raises(zq.AccessDeniedError):  # nothing of this was sent
                await change(session)

    run_virtual(main)


def test_a_purge_names_the_refused_credentials_and_what_it_has_removed() -> None:
    async def main() -> None:
        cluster = make_cluster(seed=0)
        async with cluster.connect() as other, cluster.connect(name="refused") as session:
            await other.queue("jobs").configure(zq.QueueConfig(bundle=1))
            await other.queue("jobs").put_many([b"1"] * 1_000)
            await session.queue("jobs").size()
            zookeeper: Any = core_of(session).zookeeper  # the simulated client

            async def refuse(**_: object) -> None:
                raise AuthFailedError("the server refused the credentials")

            def judge(connection: ServerConnection, request: Request) -> Fault | None:
                changes = request.kind is Kind.MULTI and connection.client.name == "refused"
                if changes and not isinstance(request.argument[-1], Delete):
                    zookeeper.session._reconnect = refuse
                    return Fault.LOST_BEFORE
                return None

            cluster.ensemble.judge = judge
            with pytest.raises(PartlyDeniedError, match="has refused the credentials") as raised:
                await session.queue("jobs").purge()
            assert raised.value.done == 1_000 - await other.queue("jobs").size()
            assert "ACL" not in str(raised.value)

    run_virtual(main)


@pytest.mark.parametrize("fault", [Fault.LOST_BEFORE, Fault.LOST_AFTER])
def test_a_declaration_in_doubt_when_no_server_answers_is_unknown(fault: Fault) -> None:
    async def main() -> None:
        cluster = make_cluster(seed=0)
        async with cluster.connect(name="cut off") as session:
            jobs = Jobs(session)
            await jobs.add("first", "0 3 * * *", session.queue("jobs"), b"1")
            zookeeper: Any = core_of(session).zookeeper  # the simulated client

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


async def put(session: zq.QueueSession) -> None:
    await session.queue("full").put(b"2", timeout=None)


async def take(session: zq.QueueSession) -> None:
    async with session.transaction() as tx:
        await tx.take(session.queue("paused"), timeout=None)


async def iterate(session: zq.QueueSession) -> None:
    async with session.queue("jobs").consume() as deliveries:
        await anext(deliveries)


async def call(session: zq.QueueSession) -> None:
    await session.queue("questions").call(b"1", timeout=3600)


async def listen(session: zq.QueueSession) -> None:
    async def handle(_: zq.Delivery[bytes]) -> None:
        pass

    await session.listener(session.queue("jobs"), handle).run()


async def schedule(session: zq.QueueSession) -> None:
    await Scheduler(session).run()


@pytest.mark.parametrize("wait", [put, take, iterate, call, listen, schedule])
def test_a_call_that_waits_ends_at_once_when_the_credentials_are_refused(
    wait: Callable[[zq.QueueSession], Awaitable[None]],
) -> None:
    async def main() -> None:
        cluster = make_cluster(seed=0)
        async with cluster.connect() as other, cluster.connect(name="refused") as session:
            await other.queue("full").configure(zq.QueueConfig(max_size=1))
            await other.queue("full").put(b"1", timeout=None)
            await other.queue("paused").put(b"1")
            await other.queue("paused").configure(zq.QueueConfig(paused=True))
            waiting = asyncio.ensure_future(wait(session))
            await asyncio.sleep(5)
            refuse_credentials(session)
            cluster.cut("refused")
            async with asyncio.timeout(1):
                with pytest.raises(zq.AccessDeniedError, match="refused the credentials"):
                    await waiting
            with pytest.raises(zq.AccessDeniedError):
                await session.queue("jobs").put(b"1")

    run_virtual(main)


@pytest.mark.parametrize("failed", [False, True], ids=["its session over", "credentials refused"])
def test_a_handler_is_cancelled_when_its_claim_is_lost_although_no_server_can_be_used(*, failed: bool) -> None:
    async def main() -> None:
        cluster, ended = make_cluster(seed=0), asyncio.Event()
        async with cluster.connect(name="lost") as session:
            zookeeper: Any = core_of(session).zookeeper  # the simulated client

            async def handle(_: zq.Delivery[bytes]) -> None:
                try:
                    await asyncio.sleep(3600)
                finally:
                    ended.set()

            def stop_servers(state: State, _: int) -> None:
                if state is State.LOST:
                    cluster.ensemble.die()

            zookeeper.on_state(stop_servers)
            await session.queue("jobs").put(b"1")
            listener = session.listener(session.queue("jobs"), handle, on_lost="cancel")
            listening = asyncio.create_task(listener.run())
            await asyncio.sleep(1)
            if failed:
                refuse_credentials(session)
                cluster.cut("lost")
            else:
                cluster.expire("lost")
            async with asyncio.timeout(10):
                await ended.wait()
            listener.abort()
            await asyncio.wait([listening])

    run_virtual(main)
