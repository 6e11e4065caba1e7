"""The findings of a diagnosis: each is reported at its threshold, and not below it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aiozkqueue.operations.doctor.diagnosis import Diagnosis, Severity, diagnose
from aiozkqueue.operations.doctor.facts import EnsembleFacts, FolderFacts, Latency, QueueFacts, ServerFacts


def server(address: str, version: str | None = None, mode: str | None = None, *, reachable: bool = True) -> ServerFacts:
    return ServerFacts(address, reachable, version, mode)


WELL = EnsembleFacts(
    servers=[server("h1:2181", "3.9.5", "leader"), server("h2:2181", "3.9.5", "follower")],
    session_timeout=10,
    request_limit=1000,
    read=Latency(0.001, 0.002),
    write=Latency(0.002, 0.004),
    clock_offset=0.01,
    authenticated=True,
    old_slots=0,
)
LANE = "/zms/q/items"


def severities_and_texts(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    return [(finding.severity.value, finding.subject) for finding in diagnosis.findings]


def test_a_full_queue_is_named_with_the_remedies() -> None:
    (finding,) = diagnose(WELL, [QueueFacts(name="q", size=5, max_size=5, consumers=1)]).findings
    assert (finding.severity, finding.subject) == (Severity.INFO, "q")
    assert finding.text == "is full, with 5 of at most 5 messages: puts wait for capacity, or fail"
    assert finding.advice == "add workers, or raise the limit with `aiozkqueue configure q --max-size N`"
    assert not diagnose(WELL, [QueueFacts(name="q", size=4, max_size=5, consumers=1)]).findings


def test_a_healthy_system_has_no_findings() -> None:
    queue = QueueFacts(name="q", lanes=[FolderFacts(LANE, 1, 799, 5)], put_lanes=[LANE], size=1, consumers=1)
    assert diagnose(WELL, [queue]).findings == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"servers": [server("h1:2181", reachable=False)]}, ("warning", "h1:2181")),
        ({"servers": [server("h1:2181")]}, ("info", "h1:2181")),
        ({"servers": [replace(server("h1:2181"), serving=False)]}, ("warning", "h1:2181")),
        ({"servers": [*WELL.servers, server("h3:2181", "3.8.0", "follower")]}, ("warning", "servers")),
        ({"servers": [server("h1:2181", "3.9.5", "standalone")]}, ("warning", "h1:2181")),
        ({"servers": [ServerFacts("h1:2181", reachable=True, answers=False)]}, ("warning", "h1:2181")),
        ({"servers": [replace(WELL.servers[0], files=11 * 1024**3)]}, ("warning", "h1:2181")),
        ({"servers": [replace(WELL.servers[0], request_limit=100_000)]}, ("error", "h1:2181")),
        ({"write": Latency(0.2, 0.3)}, ("warning", "servers")),
        ({"write": None}, ("error", "root")),
        ({"write": None, "over_quota": True}, ("error", "root")),
        ({"clock_offset": -1.5}, ("warning", "clock")),
        ({"clock_offset": 1.5}, ("warning", "clock")),
        ({"old_slots": 1}, ("warning", ".clients")),
        ({"authenticated": False, "open_to_all": ["/zms"]}, ("info", "credentials")),
        ({"open_to_all": ["/zms"]}, ("error", "root")),
        ({"readable_by_all": ["/zms"]}, ("warning", "root")),
    ],
    ids=str,
)
def test_every_problem_of_the_servers_is_found(change: dict[str, Any], expected: tuple[str, str]) -> None:
    diagnosis = diagnose(replace(WELL, **change), [])
    assert severities_and_texts(diagnosis) == [expected]
    assert diagnosis.healthy == (expected[0] == "info")
    assert all(finding.advice for finding in diagnosis.findings)


def test_credentials_are_advised_as_the_command_accepts_them_and_not_as_an_argument() -> None:
    [finding] = diagnose(replace(WELL, authenticated=False), []).findings
    assert finding.advice == "set AIOZKQUEUE_AUTH=digest:USER:PASSWORD"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"exists": False}, "error"),
        ({"trouble": "does not decode", "remedy": "use a newer version"}, "error"),
        ({"lanes": [FolderFacts(LANE, 1, 800, 5)]}, "warning"),
        ({"lanes": [FolderFacts(LANE, 1, 1001, 5)]}, "error"),
        ({"folders": [FolderFacts("/zms/q/dlq", 1, 800, 5)]}, "warning"),
        ({"lanes": [FolderFacts(LANE, 1, 1, int(0.95 * 2**30))], "put_lanes": [LANE]}, "info"),
        ({"lanes": [FolderFacts(LANE, 1, 1, 2**31 - 5)], "put_lanes": [LANE]}, "error"),
        ({"generations": 13}, "warning"),
        ({"size": 1, "consumers": 0}, "warning"),
        ({"size": 1, "paused": True}, "warning"),
        ({"size": 1, "paused": True, "consumers": 0}, "warning"),
        ({"paused": True}, "info"),
        ({"dead_letters": 1}, "info"),
        ({"foreign": ["x"]}, "warning"),
        ({"endless_locks": ["x"]}, "error"),
        ({"unannounced_locks": ["x"]}, "error"),
        ({"orphan_locks": ["a", "b", "c", "d"]}, "warning"),
        ({"orphan_dues": ["x"]}, "warning"),
        ({"orphan_metas": ["x"]}, "warning"),
        ({"obstructed": ["x"]}, "error"),
        ({"unreadable": ["x"]}, "error"),
        ({"old_pins": ["audit"]}, "warning"),
        ({"overdue": 2}, "error"),
        ({"overdue": 2, "consumers": 0}, "info"),
        ({"open_to_all": ["x"]}, "error"),
        ({"readable_by_all": ["x"]}, "warning"),
    ],
    ids=str,
)
def test_every_problem_of_a_queue_is_found(change: dict[str, Any], expected: str) -> None:
    facts: dict[str, Any] = {"name": "q", "consumers": 1, **change}
    diagnosis = diagnose(WELL, [QueueFacts(**facts)])
    assert severities_and_texts(diagnosis) == [(expected, "q")]
    assert all(finding.advice for finding in diagnosis.findings)


def test_a_paused_queue_without_consumers_must_be_resumed_and_needs_no_consumer() -> None:
    (finding,) = diagnose(WELL, [QueueFacts(name="q", size=2494, paused=True)]).findings
    assert finding.text == "is paused, and 2494 messages wait"
    assert finding.advice == "deliver them again with `aiozkqueue resume q`"


def test_the_advice_for_a_queue_without_consumers_is_a_worker_and_never_a_deletion() -> None:
    (finding,) = diagnose(WELL, [QueueFacts(name="orders", size=1)]).findings
    assert (finding.text, finding.advice) == (
        "1 message and no consumer",
        "start a worker that consumes it; `aiozkqueue peek orders` shows the messages",
    )
    (two,) = diagnose(WELL, [QueueFacts(name="orders", size=2)]).findings
    assert two.text == "2 messages and no consumer"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"size": 1, "paused": True}, "is paused, and 1 message waits"),
        ({"dead_letters": 1}, "1 dead letter"),
        ({"dead_letters": 2}, "2 dead letters"),
        ({"foreign": ["x"]}, "1 unknown znode among the messages: x"),
        ({"orphan_locks": ["a", "b"]}, "2 locks whose message is gone: a, b"),
        ({"orphan_dues": ["x"]}, "1 due node whose lock is gone: x"),
        ({"orphan_metas": ["x"]}, "1 attempt record whose message is gone: x"),
        ({"unreadable": ["x"]}, "1 message znode that this user may not read: x"),
        ({"overdue": 1}, "1 message not released, although the delay has ended"),
    ],
    ids=str,
)
def test_a_number_of_one_has_its_noun_in_the_singular(change: dict[str, Any], expected: str) -> None:
    facts: dict[str, Any] = {"name": "q", "consumers": 1, **change}
    (finding,) = diagnose(WELL, [QueueFacts(**facts)]).findings
    assert finding.text == expected


def test_files_within_the_limit_and_unknown_sizes_are_not_a_finding() -> None:
    servers = [replace(WELL.servers[0], files=9 * 1024**3), WELL.servers[1]]
    assert diagnose(replace(WELL, servers=servers), []).findings == []


def test_the_counter_of_a_lane_without_puts_is_not_a_finding() -> None:
    facts = QueueFacts(name="q", lanes=[FolderFacts(LANE, 1, 1, 2**31 - 5)], put_lanes=["/zms/q/lanes/s0g1"])
    assert diagnose(WELL, [facts]).findings == []


def test_the_most_severe_finding_comes_first() -> None:
    queue = QueueFacts(name="q", dead_letters=1, endless_locks=["x"], foreign=["y"], consumers=1)
    assert [finding.severity for finding in diagnose(WELL, [queue]).findings] == list(reversed(Severity))
