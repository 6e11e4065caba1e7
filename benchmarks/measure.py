"""One measurement: wall-clock time, CPU time of client and server, and the requests that the server received."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, Self

import psutil

from aiozkqueue.testing.node import four_letters
from aiozkqueue.worker import settled_heap

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from aiozkqueue.testing import EmbeddedEnsemble

#: The payload of every message, unless a case measures the effect of its size.
BODY = bytes(range(32, 132))


@dataclass(frozen=True, slots=True)
class Server:
    """The servers of a measurement: one, or an ensemble."""

    hosts: str
    ports: tuple[int, ...]
    processes: tuple[psutil.Process, ...]

    @classmethod
    def of(cls, embedded: EmbeddedEnsemble) -> Self:
        """Use running embedded servers."""
        return cls(
            embedded.hosts,
            tuple(node.ports.client for node in embedded.nodes),
            tuple(psutil.Process(node.pid) for node in embedded.nodes),
        )

    @property
    def first(self) -> tuple[str, int]:
        """The address of the first server."""
        return "127.0.0.1", self.ports[0]

    def requests(self) -> int:
        """Packets received so far."""
        return sum(int(self.status(port).get("zk_packets_received", "0")) for port in self.ports)

    def cpu(self) -> float:
        """Seconds of CPU used so far."""
        return cpu_of(self.processes)

    def status(self, port: int) -> dict[str, str]:
        """Return the output of ``mntr``."""
        lines = (line.partition("\t") for line in four_letters(port, "mntr").splitlines())
        return {name: value for name, _, value in lines}


@dataclass(frozen=True, slots=True)
class Sample:
    """The result of one measurement."""

    messages: int
    seconds: float
    client_cpu: float
    server_cpu: float
    requests: int
    figures: Mapping[str, float] = field(default_factory=dict[str, float])
    """Additional figures of the subject, each name with its unit."""

    def times(self, number: int) -> Self:
        """Return the sample for items that hold this number of messages each."""
        return replace(self, messages=self.messages * number)

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds

    def figure(self, name: str) -> float:
        """Return a measured or derived figure: ``rate``, CPU in µs per message, requests per message."""
        match name:
            case "rate":
                return self.rate
            case "seconds":
                return self.seconds
            case "client_us":
                return 1e6 * self.client_cpu / self.messages
            case "server_us":
                return 1e6 * self.server_cpu / self.messages
            case "requests":
                return self.requests / self.messages
            case _:
                return self.figures[name]


@dataclass(frozen=True, slots=True)
class Case:
    """A case to measure. ``run(server, messages)`` prepares, measures and cleans up."""

    name: str
    subject: str
    messages: int
    run: Callable[[Server, int], Sample]
    rounds: int | None = None
    """Maximum number of runs, for slow cases with stable results."""


class Times(Protocol):
    """Seconds of CPU."""

    @property
    def user(self) -> float:
        """In user mode."""
        ...

    @property
    def system(self) -> float:
        """In the kernel."""
        ...


class Clocked(Protocol):
    """A process, or several."""

    def cpu_times(self) -> Times:
        """The CPU used so far."""
        ...


class Stopwatch:
    """Measures its ``with`` block, in this process or in the given client processes."""

    def __init__(self, server: Server, clients: Sequence[Clocked] = ()) -> None:
        self._server = server
        self._clients = clients
        self._heap = settled_heap()
        self._before = (0, 0.0, 0.0)
        self._after = (0, 0.0, 0.0)
        self._begun = 0.0
        self._seconds = 0.0

    def __enter__(self) -> Self:
        self._heap.__enter__()
        self._before = self._read()
        self._begun = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._seconds = time.perf_counter() - self._begun
        self._after = self._read()
        self._heap.__exit__(kind, error, trace)

    def sample(self, messages: int, **figures: float) -> Sample:
        """Return the sample of the block."""
        requests, client, server = (after - before for after, before in zip(self._after, self._before, strict=True))
        return Sample(messages, self._seconds, client, server, int(requests), figures)

    def _read(self) -> tuple[int, float, float]:
        client = cpu_of(self._clients) if self._clients else time.process_time()
        return self._server.requests(), client, self._server.cpu()


def cpu_of(processes: Sequence[Clocked]) -> float:
    """Seconds of CPU that processes have used so far."""
    times = [process.cpu_times() for process in processes]
    return float(sum(each.user + each.system for each in times))
