"""Prometheus metrics: the counters of a session, and the state of the queues that it uses.

This module needs the extra ``observability``; nothing else of the core imports it. The session keeps integer counters
once `collector` has been called. Prometheus' library is called for each scrape, and never for a message.
"""

from __future__ import annotations

import logging
import time
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import QueueError, SessionClosedError
from aiozkqueue.extras import needs
from aiozkqueue.queue.commit.meter import MANY_ATTEMPTS, QueueFigures
from aiozkqueue.sampling import Sampler
from aiozkqueue.session.internals import core_of
from aiozkqueue.zookeeper import State, ZooKeeperError

with needs("observability"):
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
    from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    from aiozkqueue.runtime.histogram import Histogram
    from aiozkqueue.sampling import Sample
    from aiozkqueue.session.session import QueueSession

__all__ = ["SessionCollector", "collector"]

log: Final = logging.getLogger(__name__)

#: Maximum age in seconds of a sample of the queues that is used for another scrape.
FRESH: Final = 1.0

_COUNTERS: Final[dict[str, tuple[str, Callable[[QueueFigures], int]]]] = {
    "aiozkqueue_messages_put": ("Messages stored by this session.", lambda counters: counters.put),
    "aiozkqueue_messages_consumed": ("Messages handled and removed.", lambda counters: counters.consumed),
    "aiozkqueue_messages_retried": (
        "Messages released after a delivery: they are redelivered.",
        lambda counters: counters.retried,
    ),
    "aiozkqueue_messages_retried_often": (
        f"Messages released after their delivery number {MANY_ATTEMPTS} or a later one.",
        lambda counters: counters.failing,
    ),
    "aiozkqueue_messages_dead_lettered": ("Messages moved to the dead letters.", lambda counters: counters.dead),
    "aiozkqueue_messages_reaped": (
        "Messages of other nodes that this session has reassigned.",
        lambda counters: counters.reaped,
    ),
}
_HISTOGRAMS: Final[dict[str, tuple[str, Callable[[QueueFigures], Histogram]]]] = {
    "aiozkqueue_message_wait_seconds": (
        "Time from the put, or from the due time, until a message was claimed for its first delivery.",
        lambda counters: counters.wait,
    ),
    "aiozkqueue_message_handling_seconds": (
        "Time from a delivery until its commit or rollback was stored.",
        lambda counters: counters.handling,
    ),
}


class SessionCollector(Collector):
    """The metrics of one session, for a registry of prometheus_client; created by `collector`.

    `collect` may be called from any thread. It returns the last samples of the queues, which are at most ten seconds
    old while there is a connection; `text` samples first.
    """

    content_type: str = CONTENT_TYPE_LATEST

    def __init__(self, session: QueueSession) -> None:
        runtime = self._runtime = core_of(session)
        self._meter = runtime.measure()
        self._sampler = Sampler(session, runtime.queues_used)
        self._registry = CollectorRegistry()
        self._registry.register(self)
        runtime.tasks.spawn(self._watch, name="figures of the queues")

    async def text(self) -> bytes:
        """Return all metrics in Prometheus' text format.

        Sample the queues first, unless that was done within the last second. Without a connection, use older samples.
        """
        if self._runtime.zookeeper.state is State.CONNECTED and not self._runtime.closed:
            try:
                await self._sampler.sample_all(FRESH)
            except SessionClosedError:  # it began to close in the meantime
                pass
            except (QueueError, ZooKeeperError, TimeoutError) as error:
                if self._runtime.zookeeper.state is State.CONNECTED:  # otherwise the session logs the outage
                    log.warning("the queues could not be sampled: %s", error)
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of the session and of its queues."""
        figures = dict(self._meter.queues)
        # Prometheus sees no increase in the first value of a series, so a counter begins at 0, before its first event.
        known = dict.fromkeys(self._runtime.queues_opened(), QueueFigures()) | figures
        for name, (description, count_of) in _COUNTERS.items():
            yield _counter(name, description, "queue", {queue: count_of(counters) for queue, counters in known.items()})
        for name, (description, histogram_of) in _HISTOGRAMS.items():
            family = HistogramMetricFamily(name, description, labels=["queue"])
            for queue, counters in figures.items():
                _add(family, [queue], histogram_of(counters))
            yield family
        yield _gauge(
            "aiozkqueue_handler_oldest_age_seconds",
            "Time since the delivery of the oldest message whose handler runs; absent if none runs.",
            self._runtime.oldest_handlers().items(),
        )
        yield from self._claims()
        yield from self._session()
        if self._runtime.closed:
            yield from queue_gauges({}, ())
        else:
            yield from queue_gauges(self._sampler.latest, self._sampler.unreadable)
            yield omitted_gauge(len(self._sampler.omitted))

    # -- inside

    async def _watch(self) -> None:
        try:
            await self._sampler.run()
        except Exception:  # a defect here must not end the session
            log.exception("the queues are no longer sampled")

    def _claims(self) -> Iterator[Metric]:
        claimed: dict[str, int] = {}
        requests: dict[str, int] = {}
        contended: dict[str, int] = {}
        for queue, counts in self._runtime.claim_counts():
            claimed[queue] = claimed.get(queue, 0) + counts.claimed
            requests[queue] = requests.get(queue, 0) + counts.batches
            contended[queue] = contended.get(queue, 0) + counts.contended
        yield _counter("aiozkqueue_messages_claimed", "Messages claimed.", "queue", claimed)
        yield _counter("aiozkqueue_claim_requests", "Requests for claims that were answered.", "queue", requests)
        yield _counter(
            "aiozkqueue_claim_requests_contended",
            "Requests for claims refused because somebody else held one of the messages.",
            "queue",
            contended,
        )

    def _session(self) -> Iterator[Metric]:
        meter, now = self._meter, State.CLOSED if self._runtime.closed else self._runtime.zookeeper.state
        outcomes = {outcome.name.lower(): count for outcome, count in meter.outcomes.items()}
        yield _counter(
            "aiozkqueue_transactions", "Transactions and deliveries, by how they ended.", "outcome", outcomes
        )
        family = HistogramMetricFamily(
            "aiozkqueue_group_commit_size", "Commits, rollbacks and puts that shared one request.", labels=[]
        )
        _add(family, [], meter.groups)
        yield family
        yield session_gauge(now)
        yield CounterMetricFamily("aiozkqueue_session_reconnects", "Connections made after a loss.", meter.reconnects)
        yield CounterMetricFamily(
            "aiozkqueue_session_expirations", "ZooKeeper sessions that the server has ended.", meter.expirations
        )


def collector(session: QueueSession) -> SessionCollector:
    """Turn on a session's counting, and return a collector to register: ``REGISTRY.register(collector(session))``.

    Earlier events are not counted. The queues that the session has used are sampled every ten seconds, by a few reads
    each, until the session is closed. Create one collector per session and registry.

    Raises: SessionClosedError, WrongLoopError.
    """
    return SessionCollector(session)


_GAUGES: Final[dict[str, tuple[str, Callable[[Sample], float]]]] = {
    "aiozkqueue_queue_messages": ("Size: waiting, in flight and delayed messages.", lambda sample: sample.size),
    "aiozkqueue_queue_waiting": ("Messages that can be taken now.", lambda sample: sample.waiting),
    "aiozkqueue_queue_in_flight": ("Messages that a transaction or delivery holds.", lambda sample: sample.in_flight),
    "aiozkqueue_queue_delayed": (
        "Messages that can be taken later: retrying and scheduled.",
        lambda sample: sample.delayed,
    ),
    "aiozkqueue_queue_retrying": (
        "Messages that were delivered before and are redelivered at a known time.",
        lambda sample: sample.retrying,
    ),
    "aiozkqueue_queue_scheduled": (
        "Messages that were put with a delay or a time that has not come.",
        lambda sample: sample.scheduled,
    ),
    "aiozkqueue_queue_paused": ("1 if the queue is paused: no message is claimed.", lambda sample: sample.paused),
    "aiozkqueue_queue_dead_letters": ("Dead letters.", lambda sample: sample.dead),
    "aiozkqueue_queue_consumers": ("Sessions that take from the queue.", lambda sample: sample.consumers),
}


def session_gauge(now: State) -> Metric:
    """Return the metric of a session's state."""
    family = GaugeMetricFamily("aiozkqueue_session_state", "1 for the state it is in.", labels=["state"])
    for state in State:
        family.add_metric([state.name.lower()], state is now)
    return family


def queue_gauges(samples: Mapping[str, Sample], unreadable: Iterable[str]) -> Iterator[Metric]:
    """Return the metrics of queues from their last samples, by name, and of the queues that could not be read."""
    for name, (description, value_of) in _GAUGES.items():
        yield _gauge(name, description, ((queue, value_of(sample)) for queue, sample in samples.items()))
    limits = ((queue, sample.max_size) for queue, sample in samples.items() if sample.max_size is not None)
    yield _gauge("aiozkqueue_queue_max_size", "Maximum number of messages; absent if it is unlimited.", limits)
    now = time.time()
    ages = ((queue, age) for queue, sample in samples.items() if (age := sample.age(now)) is not None)
    yield _gauge(
        "aiozkqueue_queue_oldest_waiting_age_seconds",
        "Time since the put, or the end of the delay, of the oldest waiting message; absent if no message waits.",
        ages,
    )
    yield _gauge(
        "aiozkqueue_queue_unreadable",
        "1 if a queue or a part of it could not be read: access denied, undecodable configuration, or too slow.",
        (
            *((queue, bool(sample.unreadable)) for queue, sample in samples.items()),
            *((queue, 1) for queue in unreadable),
        ),
    )


def omitted_gauge(number: int) -> Metric:
    """Return the metric of the queues that are not sampled, because there are too many."""
    name, text = "aiozkqueue_queues_omitted", "Queues whose state is not reported: those after the first 500 by name."
    return GaugeMetricFamily(name, text, number)


def _gauge(name: str, description: str, values: Iterable[tuple[str, float]]) -> Metric:
    family = GaugeMetricFamily(name, description, labels=["queue"])
    for queue, value in values:
        family.add_metric([queue], value)
    return family


def _counter(name: str, description: str, label: str, values: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, description, labels=[label])
    for value, count in values.items():
        family.add_metric([value], count)
    return family


def _add(family: HistogramMetricFamily, labels: list[str], histogram: Histogram) -> None:
    bounds = [*(str(float(bound)) for bound in histogram.bounds), "+Inf"]
    family.add_metric(labels, list(zip(bounds, accumulate(histogram.counts), strict=True)), histogram.total)
