"""A random program: producers, transactions, consumers and listeners over two queues, and their faults.

`run(seed)` is one history: the same seed repeats it, request by request.
"""

from __future__ import annotations

import asyncio
import json
import warnings
from contextlib import suppress
from contextvars import copy_context
from random import Random
from typing import TYPE_CHECKING

import aiozkqueue as zq
from aiozkqueue.errors import ImplicitSettleWarning, UncommittedWarning
from aiozkqueue.layout import LANE_END, BundleName, BundleRecord, decode, decode_bundle, is_bundle
from aiozkqueue.testing.simulator import Cluster, Delays, Ensemble, Process, StuckError, VirtualLoop
from aiozkqueue.testing.simulator.loop import PROCESS, run_virtual
from aiozkqueue.zookeeper import State
from tests.simulation.disturbances import SESSION_TIMEOUT, Disturbances, has_a_slot
from tests.simulation.history import Final, History, Status
from tests.simulation.joining import load
from tests.simulation.programs import QUEUES, Program, features
from tests.simulation.programs.consumers import consume, listen
from tests.simulation.programs.operators import operate
from tests.simulation.programs.producers import produce
from tests.simulation.programs.transactions import transact
from tests.simulation.recorder import Recorder
from tests.simulation.refusals import watch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence


#: Virtual seconds after which an unfinished history counts as stuck.
LIMIT = 600.0
#: Virtual seconds after which a server catches up if all servers lag by more than half the session timeout.
CAUGHT_UP = 60.0
#: Seconds for which the last consumer waits for another message, longer than any session and any backoff.
IDLE = 30.0


class Run(Recorder):
    """One history during its run."""

    def __init__(
        self,
        seed: int | str,
        *,
        trace: list[tuple[object, ...]] | None = None,
        rough: bool = False,
        size: int | None = None,
        feature: str | None = None,
    ) -> None:
        super().__init__(Random(f"{seed} workload"))
        self.feature = None if feature is None else features[feature]
        self.seed = seed
        self.disturbances = Disturbances(Random(f"{seed} weather"), Random(f"{seed} reads"))
        self.ensemble = Ensemble(
            Random(f"{seed} ensemble"),
            size=size or self.random.choice([1, 1, 3]),
            delays=Delays(
                self.disturbances.delay,
                self.disturbances.delay,
                self.disturbances.delay,
                self.disturbances.lingering,
                self.disturbances.together,
            ),
            judge=self.disturbances.judge,
            tick=0.1,
            offset=self.random.uniform(-5, 5),
            trace=trace,
        )
        if rough:
            self.disturbances.level = max(self.disturbances.level, 0.08)
            if self.random.random() < 0.5:
                self.ensemble.strays = has_a_slot
        self.rough = rough
        self.ensemble.on_session_over = self._session_over
        self.cluster = Cluster(self.ensemble, seed)
        watch(self)
        self.killed: set[str] = set()

    def _session_over(self, session: int, closed: bool) -> None:  # noqa: FBT001 - a callback
        self.history.sessions_over[session] = self.loop.time()
        self.history.interrupted += not closed

    # Processes

    async def process(self, name: str, programs: Sequence[Program]) -> None:
        """One process: a session, and concurrent programs."""
        async with self.cluster.connect(session_timeout=SESSION_TIMEOUT, name=name, node=name) as session:
            patience = self.random.random() * 2 if self.random.random() < 0.15 else None
            with suppress(TimeoutError):
                async with asyncio.timeout(patience), asyncio.TaskGroup() as group:
                    for program in programs:
                        group.create_task(self._closing(program(self, name, session)))
            if patience is None:
                self.done[name].set()
                await self.over.wait()
                self.count_ephemerals(name, session)
            else:
                self.history.interrupted += 10  # the cancelled program stops in the middle of its work
        self.done[name].set()

    def count_ephemerals(self, name: str, session: zq.QueueSession) -> None:
        """Record whether a session that holds no lock any more counts only its entries as a consumer and as waiting."""
        core = session._core
        zookeeper, generation = core.zookeeper, core.zookeeper.generation
        if zookeeper.state is not State.CONNECTED or zookeeper.session_id not in self.ensemble.sessions:
            return
        nodes = self.ensemble.tree.nodes.items()
        if any(node.owner == zookeeper.session_id and "/locks/" in path for path, node in nodes):
            return
        entries = [dispatcher._candidates.registration for dispatcher in core._dispatchers.values()]
        expected = sum(entry._size(entry._name(generation)) for entry in entries if entry.generation == generation)
        waiting = [gate._entry(generation) for gate in core._gates if gate._listed_in == generation]
        expected += sum(zookeeper.path_size(path) + 4 for path in waiting)
        counted = core._budgets.of(generation).used
        if counted != expected:
            self.history.miscounted.append(f"{name} counts {counted} bytes of ephemerals, and has {expected}")

    async def _closing(self, program: Awaitable[None]) -> None:
        with suppress(zq.SessionClosedError):
            await program

    async def chaos(self, processes: dict[str, Process]) -> None:
        """Inject the faults of the processes and the servers."""
        random, ensemble = self.random, self.ensemble
        for _ in range(random.choice([0, 0, 1, 2, 4])):
            await asyncio.sleep(random.random() * random.choice([0.02, 0.5, 3]))
            name = random.choice(list(processes))
            what = random.random()
            if what < 0.3:
                with suppress(KeyError):
                    self.cluster.expire(name)
            elif what < 0.5:
                processes[name].pause(random.random() * 3 * SESSION_TIMEOUT)
            elif what < 0.6 and len(self.killed) < len(processes) - 1:
                self.killed.add(name)
                processes[name].pause(2 * LIMIT)
            elif what < 0.75:
                with suppress(KeyError):
                    self.cluster.cut(name)
            elif what < 0.85 and not ensemble.alone:
                ensemble.elect()
            elif not ensemble.alone:
                lag = random.random() * 3
                server = random.choice(ensemble.servers)
                server.lag = lag
                if (
                    min(peer.lag for peer in ensemble.servers) > SESSION_TIMEOUT / 2
                ):  # otherwise no session would survive on any server
                    asyncio.get_running_loop().call_later(CAUGHT_UP, setattr, server, "lag", 0.0)

    async def main(self) -> History:
        """Run the whole history."""
        history, loop = self.history, asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.over = asyncio.Event()
        await self.set_up()
        processes = {
            name: Process(loop, name) for name in (f"p{number}" for number in range(self.random.randint(1, 3)))
        }
        self.done = {name: asyncio.Event() for name in processes}
        running = [self.start(process) for process in processes.values()]
        chaos = asyncio.create_task(self.chaos(processes))
        while any(not done.is_set() for name, done in self.done.items() if name not in self.killed):
            if self.failures(running):
                break
            await asyncio.wait(running, timeout=0.5)
        history.trouble += self.failures(running)
        chaos.cancel()
        await self.heal()
        if not history.trouble:
            await self.drain()
        self.finish()
        self.over.set()
        for process in processes.values():
            if process.name not in self.killed:
                process.resume()
        survivors = [task for task in running if task.get_name() not in self.killed]
        if survivors:
            await asyncio.wait(survivors)
        if not history.trouble:
            history.trouble += self.failures(survivors)
        history.trouble += loop.failures
        return history

    async def set_up(self) -> None:
        """Make the queues."""
        random = self.random
        self.disturbances.calm = True
        async with self.cluster.connect(name="first") as session:
            for name in QUEUES:
                await self.configure(session, name, zq.QueueConfig(policy=self.policy()))
                if random.random() < 0.1:
                    await session.queue(name).configure(zq.QueueConfig(shards=2))
                if random.random() < 0.1:
                    self.near_the_end(f"/zms/{name}/items")
            if self.feature is not None:
                await self.feature.prepare(self, session)
        self.disturbances.calm = False

    def start(self, process: Process) -> asyncio.Task[None]:
        """Start a process with its own programs."""
        random = self.random
        programs: list[Program] = [produce, produce, transact, transact, consume, listen]
        if random.random() < (0.3 if self.rough else 0.1):
            programs += [operate] * 2
        chosen = [produce, *random.choices(programs, k=random.randint(1, 3))]
        if self.feature is not None:
            chosen += random.choices(self.feature.programs, k=random.randint(1, 2))
        context = copy_context()
        context.run(PROCESS.set, process)
        return asyncio.get_running_loop().create_task(
            self.process(process.name, chosen), name=process.name, context=context
        )

    @staticmethod
    def failures(running: Sequence[asyncio.Task[None]]) -> list[str]:
        """Return the errors of processes that ended unexpectedly."""
        ended = [(task.get_name(), task.exception()) for task in running if task.done()]
        return [f"{name} failed: {_innermost(error)!r}" for name, error in ended if error is not None]

    def near_the_end(self, lane: str) -> None:
        """Advance a lane's counter so far that the next generation begins soon."""
        trees = {self.ensemble.tree, *(server.tree for server in self.ensemble.servers)}
        for tree in trees:
            if lane in tree.nodes:
                tree.nodes[lane].creates = LANE_END - 3

    async def heal(self) -> None:
        """Inject no more faults. Their consequences remain."""
        self.disturbances.calm = True
        for server in self.ensemble.servers:
            server.lag = 0.0
        await asyncio.sleep(2 * SESSION_TIMEOUT)

    async def drain(self) -> None:
        """Take the remaining messages while all processes are idle."""
        async with self.cluster.connect(session_timeout=SESSION_TIMEOUT, name="last") as session:
            if self.feature is not None and self.feature.relax is not None:
                await self.feature.relax(self, session)
            for name in self.queues:
                left = True
                while left:
                    unit = self.unit("last")
                    async with session.transaction() as tx:
                        messages = await tx.take_many(session.queue(name), 50, timeout=IDLE)
                        for message in messages:
                            self.show(unit, "last", session, message)
                        self.release_unseen(unit)
                    self.decide(unit, Status.COMMITTED)
                    left = bool(messages)

    def finish(self) -> None:
        """Record the final state of the servers."""
        final, nodes = Final(), self.ensemble.tree.nodes
        data = {path: node.data for path, node in nodes.items()}
        for queue in self.queues:
            base = f"/zms/{queue}/"
            final.items[queue], final.dead[queue] = [], []
            for path, node in nodes.items():
                if not path.startswith(base):
                    continue
                folder, _, name = path[len(base) :].rpartition("/")
                if folder == "dlq":
                    final.dead[queue].append(decode(node.data)[1].decode())
                elif is_bundle(name) and folder != "meta":
                    final.items[queue] += left_in(base, path, data)
                elif folder == "items" or (folder.startswith(("lanes/", "later/")) and name.startswith("item")):
                    final.items[queue].append(decode(node.data)[1].decode())
                elif folder == "consumers" and node.owner not in self.ensemble.sessions:
                    final.strangers.append(path)
                elif folder in ("locks", "meta", "due"):
                    final.leftovers.append(f"{path} {json.dumps(node.data.decode())}")
        self.history.final = final
        if self.feature is not None and self.feature.finish is not None:
            self.feature.finish(self, nodes)


def left_in(base: str, path: str, nodes: Mapping[str, bytes]) -> list[str]:
    """Return the payloads of the messages that are left in the bundle at a path, in the queue below ``base``."""
    bundle = BundleName.parse(path.rpartition("/")[2])
    assert bundle is not None
    record = nodes.get(f"{base}meta/bundle-{bundle.id}")
    done = 0 if record is None else BundleRecord.decode(record).done
    messages = decode_bundle(nodes[path])
    return [decode(data)[1].decode() for _, data, position in messages if not done >> position & 1]


def _innermost(error: BaseException | None) -> BaseException | None:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def run(
    seed: int | str,
    *,
    trace: list[tuple[object, ...]] | None = None,
    rough: bool = False,
    feature: str | None = None,
) -> History:
    """Make one history.

    Args: seed: identifies the history. trace: receives every request, with its fault. rough: whether to add more
    faults, and late requests that could no longer arrive at a real server. feature: the name of a feature that takes
    part.
    """
    load("tests.simulation.programs")
    made: list[Run] = []

    async def main() -> History:
        made.append(Run(seed, trace=trace, rough=rough, feature=feature))
        return await made[0].main()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ImplicitSettleWarning)
        warnings.simplefilter("ignore", UncommittedWarning)
        try:
            return run_virtual(main, limit=LIMIT)
        except StuckError as error:
            history = made[0].history
            history.trouble.append(f"a program waits forever: {error}")
            return history
