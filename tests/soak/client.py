"""A client process of a soak: producers, movers, consumers and listeners in one session that record their actions.

``python -m tests.soak.client <name> <programs> <hosts> <journal> <seed>``; SIGUSR1 ends the producers, SIGTERM ends all
programs.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import signal
import sys
import warnings
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import aiozkqueue as zq
from aiozkqueue.errors import BlockedLoopWarning, ImplicitSettleWarning, UncommittedWarning
from tests.simulation.history import Status
from tests.soak.journal import OVER, Journal, Record
from tests.soak.plan import CONNECT_TIMEOUT, LIMIT, MOST_WAITING, NEXT, PAUSE, ROOT, SESSION_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from aiozkqueue.session.unit_of_work import UnitOfWork

_STATUS = {
    zq.Outcome.COMMITTED: Status.COMMITTED,
    zq.Outcome.ROLLED_BACK: Status.NOT_COMMITTED,
    zq.Outcome.UNKNOWN: Status.UNKNOWN,
    zq.Outcome.OPEN: Status.PENDING,
}


class HandlerError(Exception):
    """The error of a handler that fails."""


class Client:
    """The programs of one process."""

    def __init__(self, session: zq.QueueSession, journal: Journal, chance: random.Random) -> None:
        self.session = session
        self.journal = journal
        self.chance = chance
        self.calm = asyncio.Event()
        self.over = asyncio.Event()
        self._stops: set[Callable[[], None]] = set()
        self._open: list[tuple[Record, zq.Delivery[bytes]]] = []

    def stop(self) -> None:
        """Have every program finish its current work and end."""
        self.calm.set()
        self.over.set()
        for stop in self._stops:
            stop()

    # Records

    def show(self, unit: Record, message: zq.Message[bytes], work: UnitOfWork) -> str:
        zookeeper, generation = self.session._runtime.zookeeper, work.generation
        session = zookeeper.session_id if generation == zookeeper.generation else OVER
        unit.show(token := message.value.decode(), message.queue, session)
        return token

    def sweep(self) -> None:
        """Record the deliveries that have been settled since the last call."""
        still = []
        for unit, delivery in self._open:
            if delivery.outcome in (zq.Outcome.COMMITTED, zq.Outcome.ROLLED_BACK):
                unit.end(_STATUS[delivery.outcome])
            else:
                still.append((unit, delivery))
        self._open = still

    @asynccontextmanager
    async def outcome_of(self, unit: Record, work: list[zq.Transaction]) -> AsyncIterator[None]:
        """Record the outcome of a unit by the error that leaves the block; a block without an error has committed."""
        try:
            yield
        except (zq.NotCommittedError, zq.ConnectionLostError) as error:  # a lost connection: a take writes nothing
            unit.end(Status.NOT_COMMITTED, repr(error))
        except HandlerError:
            unit.end(Status.NOT_COMMITTED)
        except zq.OutcomeUnknownError as error:
            unit.end(_STATUS[await self.session.outcome(work[0].id)], repr(error))
        else:
            if not unit.decided:
                unit.end(Status.COMMITTED)

    # Programs

    async def produce(self) -> None:
        chance, waiting = self.chance, 0
        while not self.calm.is_set():
            await asyncio.sleep(chance.expovariate(1 / PAUSE))
            if chance.random() < 0.2:
                with suppress(zq.ConnectionLostError):
                    waiting = sum([await self.session.queue(name).size() for name in LIMIT])
            if waiting > MOST_WAITING:
                await asyncio.sleep(1)
                waiting = 0
                continue
            unit, name = self.journal.unit("produce"), chance.choice(["in", "in", "work", "once"])
            tokens = [self.journal.token() for _ in range(chance.choice([1, 1, 1, 3]))]
            unit.put(name, *tokens)
            async with self.outcome_of(unit, []):
                if len(tokens) == 1:
                    await self.session.queue(name).put(tokens[0].encode())
                else:
                    await self.session.queue(name).put_many([token.encode() for token in tokens])

    async def move(self) -> None:
        while not self.over.is_set():
            unit, begun = self.journal.unit("move"), list[zq.Transaction]()
            autocommit = self.chance.choice([True, False])
            async with self.outcome_of(unit, begun), self.session.transaction(autocommit=autocommit) as tx:
                begun.append(tx)
                try:
                    await self._transaction(unit, tx, commits=autocommit)
                finally:
                    unit.release_unseen()

    async def _transaction(self, unit: Record, tx: zq.Transaction, *, commits: bool) -> None:
        chance = self.chance
        for name in chance.choice([("in",), ("in", "work"), ("work", "in")]):
            limit, timeout = chance.choice([1, 2, 5]), chance.choice([0, 0.5]) if unit.takes else 0.5
            for message in await tx.take_many(self.session.queue(name), limit, timeout=timeout):
                token = self.show(unit, message, tx._work)
                what = chance.random()
                if what < 0.01:
                    unit.reject(token)
                    tx.reject(message, "bad")
                elif what < 0.03:
                    unit.keep(token)
                    tx.release(message, delay=chance.choice([None, 0.2]))
                self._follow(unit, name, tx.put)
        await self._take_time()
        unit.release_unseen()
        what = chance.random()
        if what < 0.03:
            await tx.rollback(delay=chance.choice([None, 0, 0.2]))
            unit.end(Status.NOT_COMMITTED)
        elif what < 0.08:
            await tx.commit(timeout=chance.choice([0.003, 0.05]))
        elif not commits:
            await tx.commit()

    def _follow(self, unit: Record, queue: str, put: Callable[[str, bytes], str]) -> None:
        """Put a message to each of the next queues, which shows that this one was consumed."""
        for name in NEXT[queue]:
            token = self.journal.token()
            unit.put(name, token)
            put(name, token.encode())

    async def _take_time(self) -> None:
        if self.chance.random() < 0.25:
            await asyncio.sleep(self.chance.random() * self.chance.choice([0.001, 0.01, 0.2]))
        if self.chance.random() < 0.03:
            raise HandlerError

    async def consume(self, name: str) -> None:
        chance = self.chance
        while not self.over.is_set():
            prefetch, left = chance.choice([1, 4, 32]), chance.randint(20, 400)
            with suppress(HandlerError, zq.NotCommittedError):
                async with self.session.queue(name).consume(prefetch=prefetch) as deliveries:
                    with self._stopping(deliveries.stop):
                        async for delivery in deliveries:
                            unit = self._begin("consume", name, delivery)
                            if chance.random() < 0.3:
                                async with delivery:
                                    await self._handle(unit, name, delivery)
                            else:
                                await self._handle(unit, name, delivery)
                            left -= 1
                            if left <= 0:
                                break
            self.sweep()

    async def listen(self, name: str) -> None:
        chance = self.chance

        async def handler(delivery: zq.Delivery[bytes]) -> None:
            unit = self._begin("listen", name, delivery)
            try:
                if chance.random() < 0.02:
                    raise zq.Retry(delay=chance.choice([None, 0, 0.2]))
                if chance.random() < 0.01:
                    unit.reject(delivery.value.decode())
                    raise zq.Reject("bad")
                await self._handle(unit, name, delivery)
            finally:
                unit.release_unseen()

        while not self.over.is_set():
            queue, concurrency = self.session.queue(name), chance.choice([1, 2, 4])
            listener = self.session.listener(queue, handler, concurrency=concurrency)
            timer = asyncio.get_running_loop().call_later(chance.uniform(5, 40), listener.stop)
            with self._stopping(listener.stop):
                await listener.run()
            timer.cancel()
            self.sweep()

    def _begin(self, program: str, name: str, delivery: zq.Delivery[bytes]) -> Record:
        self.sweep()
        unit = self.journal.unit(f"{program} {name}")
        self._open.append((unit, delivery))
        self.show(unit, delivery, delivery._settling.work)  # type: ignore[attr-defined]
        return unit

    async def _handle(self, unit: Record, name: str, delivery: zq.Delivery[bytes]) -> None:
        try:
            self._follow(unit, name, delivery.put)
            await self._take_time()
        finally:
            unit.release_unseen()
        what = self.chance.random()
        if what < 0.03:
            await delivery.rollback(delay=self.chance.choice([None, 0, 0.1]))
        elif what < 0.15:
            await delivery.commit()

    @contextmanager
    def _stopping(self, stop: Callable[[], None]) -> Iterator[None]:
        self._stops.add(stop)
        try:
            if self.over.is_set():
                stop()
            yield
        finally:
            self._stops.discard(stop)

    async def keep_record(self) -> None:
        while not self.over.is_set():
            self.sweep()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.over.wait(), 0.5)


async def main(name: str, programs: str, hosts: str, path: str, seed: str) -> None:
    journal, loop = Journal(Path(path), name), asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: journal.trouble(f"{context}"))
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    calmed = asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, calmed.set)
    loop.add_signal_handler(signal.SIGUSR2, print_stacks)
    connecting = zq.connect(hosts, root=ROOT, session_timeout=SESSION_TIMEOUT, connect_timeout=CONNECT_TIMEOUT)
    async with connecting as session:
        client = Client(session, journal, random.Random(seed))
        journal.write("hello", pid=os.getpid(), session=session._runtime.zookeeper.session_id)

        async def obey() -> None:
            await calmed.wait()
            client.calm.set()

        async def end() -> None:
            await stopped.wait()
            calmed.set()
            client.stop()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(obey())
            tasks.create_task(end())
            tasks.create_task(client.keep_record())
            for program in programs.split(","):
                method, _, queue = program.partition(":")
                tasks.create_task(getattr(client, method)(*[queue] if queue else []), name=program)
    client.sweep()
    journal.write("bye")


def print_stacks() -> None:
    """Print the stack of every task, to diagnose a client that does nothing."""
    for task in asyncio.all_tasks():
        task.print_stack()


def _innermost(error: BaseException) -> BaseException:
    return _innermost(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


if __name__ == "__main__":
    # A client that is stopped must not outlive the driver either.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    for category in (ImplicitSettleWarning, UncommittedWarning, BlockedLoopWarning):
        warnings.simplefilter("ignore", category)
    try:
        asyncio.run(main(*sys.argv[1:]))
    except Exception as error:
        Journal(Path(sys.argv[4]), sys.argv[1]).trouble(f"ended by {_innermost(error)!r}")
        raise
