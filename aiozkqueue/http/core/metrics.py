"""The metrics for Prometheus; needs ``aiozkqueue[observability]``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from aiozkqueue.metrics import omitted_gauge, queue_gauges, session_gauge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.metrics_core import Metric

    from aiozkqueue.sampling import Sampler
    from aiozkqueue.zookeeper import State

_BUCKETS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """The metrics of one server.

    ``sampler`` returns the reader of its queues' figures, and ``state`` the state of its session, while there are any.
    """

    content_type: str = CONTENT_TYPE_LATEST

    def __init__(self, sampler: Callable[[], Sampler | None], state: Callable[[], State | None]) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "aiozkqueue_http_requests",
            "Requests answered.",
            ["service", "operation", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "aiozkqueue_http_request_seconds",
            "Duration of requests, including the waiting time of long polls.",
            ["service", "operation"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._registry.register(_Queues(sampler, state))

    def observe(self, service: str, operation: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests.labels(service, operation, str(status)).inc()
        self._seconds.labels(service, operation).observe(seconds)

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self._registry)


class _Queues(Collector):
    """The figures of the queues at the last sample, and the connection."""

    def __init__(self, sampler: Callable[[], Sampler | None], state: Callable[[], State | None]) -> None:
        self._sampler = sampler
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of all queues and of the session."""
        sampler, state = self._sampler(), self._state()
        if state is not None:
            yield session_gauge(state)
        if sampler is not None:
            omitted = set(sampler.omitted)  # the dashboard may have sampled one of them for its page
            sampled = {name: sample for name, sample in sampler.latest.items() if name not in omitted}
            yield from queue_gauges(sampled, sampler.unreadable)
            yield omitted_gauge(len(omitted))
            yield GaugeMetricFamily(
                "aiozkqueue_queues_looked_at_timestamp_seconds",
                "Time of the last sample of the queues, seconds since 1970; 0: never.",
                sampler.sampled_at,
            )
