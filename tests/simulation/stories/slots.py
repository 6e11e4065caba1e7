"""Late copies of a multi, and commit slots read from a lagging server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aiozkqueue as zq
from aiozkqueue.testing.simulator import Fault, Kind, Request, run_virtual
from aiozkqueue.zookeeper import Delete, State
from tests.simulation.disturbances import has_a_slot
from tests.simulation.history import History, Status
from tests.simulation.programs import QUEUES
from tests.simulation.stories import story
from tests.simulation.stories.acts import end, move, simulated_client
from tests.simulation.workload import LIMIT, Run

if TYPE_CHECKING:
    from aiozkqueue.testing.simulator.server import ServerConnection


@story
def a_late_request_arrives_after_its_copy_was_refused(seed: int | str) -> History:
    """A put is late, and its copy is refused because the lane was deleted.

    Then the late put arrives at the new lane.
    """

    async def main() -> History:
        run = Run(seed, size=1)
        ensemble, disturbances = run.ensemble, run.disturbances
        disturbances.calm = True
        ensemble.strays = has_a_slot
        ensemble.delays.lingering = lambda: run.random.random() * 20 * disturbances.scale
        async with run.cluster.connect(name="first") as session:
            for name in QUEUES:
                await run.configure(session, name, zq.QueueConfig(policy=zq.AtLeastOnce()))
            faulty: list[Request] = []

            def judge(_: ServerConnection, request: Request) -> Fault | None:
                if faulty or request.kind is not Kind.MULTI or "/item-" not in request.argument[-1].path:
                    return None
                faulty.append(request)
                ensemble.tree.write([Delete("/zms/a/items")], 0, ensemble.tree.applied, ensemble.now())
                return Fault.LATE

            ensemble.judge = judge
            unit = run.unit("first")
            unit.puts = {run.token(): "a"}
            async with run.outcome_of(unit):
                await session.queue("a").put(next(iter(unit.puts)).encode())
                run.decide(unit, Status.COMMITTED)
            await end(run)
        return run.history

    return run_virtual(main, limit=LIMIT)


@story
def a_new_session_moves_to_a_lagging_server(seed: int | str) -> History:
    """A put loses its reply and its session. The next session reads the slot from a lagging server."""

    async def main() -> History:
        run = Run(seed, size=3)
        ensemble = run.ensemble
        run.disturbances.calm = True
        first, second, _ = ensemble.servers
        async with run.cluster.connect(name="first") as session:
            await run.configure(session, "a", zq.QueueConfig(policy=zq.AtLeastOnce()))
            await move(run, session, "first", first)
            zookeeper = simulated_client(session)
            faulty: list[Request] = []

            def judge(connection: ServerConnection, request: Request) -> Fault | None:
                if faulty or request.kind is not Kind.MULTI or "/item-" not in request.argument[-1].path:
                    return None
                faulty.append(request)
                second.lag = 1.0
                end_when_applied(connection.session.id)
                return Fault.LOST_AFTER

            def end_when_applied(session_id: int) -> None:
                if any("/item-" in path for path in first.tree.nodes):
                    ensemble.expire(session_id)
                else:
                    run.loop.call_later(run.disturbances.scale / 100, end_when_applied, session_id)

            def move_to_lagging_server(state: State, generation: int) -> None:
                if state is State.CONNECTED and generation == 2 and zookeeper.session.server is first:
                    zookeeper.session.server = second
                    run.loop.call_soon(run.cluster.cut, "first")

            zookeeper.on_state(move_to_lagging_server)
            ensemble.judge = judge
            unit = run.unit("first")
            unit.puts = {run.token(): "a"}
            async with run.outcome_of(unit):
                await session.queue("a").put(next(iter(unit.puts)).encode())
                run.decide(unit, Status.COMMITTED)
            await end(run)
        return run.history

    return run_virtual(main, limit=LIMIT)
