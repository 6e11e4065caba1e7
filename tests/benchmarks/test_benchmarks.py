"""The benchmarks run and report their results; no test judges their speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.bars import BARS, Bar
from benchmarks.beside_curator import measure as measure_beside_curator
from benchmarks.deep import main as show_deep
from benchmarks.fairness import main as show_fairness
from benchmarks.fairness import one_for_each
from benchmarks.features import CASES as FEATURES
from benchmarks.killbill import CASES as KILLBILL
from benchmarks.latency import CASES as LATENCY
from benchmarks.latency import percentiles
from benchmarks.measure import Case, Sample
from benchmarks.ours import CASES as OURS
from benchmarks.peers_curator import Curator
from benchmarks.peers_curator import cases as of_curator
from benchmarks.peers_kazoo import CASES as KAZOO
from benchmarks.peers_redis import LocalRedis
from benchmarks.peers_redis import cases as of_redis
from benchmarks.raw import CASES as RAW
from benchmarks.rounds import Results
from benchmarks.scaling import CASES as SCALING
from benchmarks.scaling import sessions_name
from benchmarks.spark_targets import CASES as SPARK_TARGETS

ROOT = Path(__file__).parents[2]
SESSIONS = sessions_name(4)
CASES = ["raw: multis of 100 creates", "put, direct", "Curator: put in background", SESSIONS]


def results(**rates: list[float]) -> Results:
    found = Results()
    for name, of_rounds in rates.items():
        for round_, rate in enumerate(of_rounds):
            case = Case(name, "put", 1, lambda _server, _messages: Sample(1, 1, 0, 0, 0))
            found.add(case, round_, Sample(100, 100 / rate, 0.1, 0.2, 5, {"p50_ms": rate}))
    return found


def run(*options: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "benchmarks", *options]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_quick_run_prints_tables_and_keeps_every_sample_with_the_machine(tmp_path: Path) -> None:
    only = [word for case in CASES for word in ("--only", case)]
    code, output = run("--quick", "--name", "smoke", "--results", str(tmp_path), *only)
    assert code == 0
    assert SESSIONS in output
    kept = json.loads((tmp_path / "smoke.json").read_text())
    assert set(CASES) <= kept["cases"].keys()
    assert {"cpu", "cores", "kernel", "python", "zookeeper"} <= kept["machine"].keys()
    assert kept["cases"][SESSIONS]["samples"]["0"]["figures"].keys() >= {"failed", "in_vain"}
    assert kept["absent"] == {}
    assert (tmp_path / "smoke.png").read_bytes().startswith(b"\x89PNG")


def test_an_unknown_case_name_is_refused_before_any_case_starts() -> None:
    code, output = run("--only", "no such thing")
    assert code == 1
    assert "messages/s" not in output


def test_a_ratio_is_the_median_of_the_ratios_of_each_round() -> None:
    found = results(ours=[100.0, 10.0, 30.0], theirs=[50.0, 5.0, 10.0])
    assert found.ratio("ours", "theirs") == pytest.approx(2.0)


def test_a_bar_passes_at_its_limit_and_has_no_value_for_an_unmeasured_case() -> None:
    found = results(ours=[40.0], theirs=[10.0])
    at_least = Bar("ours", 4, "theirs")
    at_most = Bar("ours", 30, figure="p50_ms", at_most=True)
    assert at_least.value(found) == pytest.approx(4)
    assert at_least.passed(4.0)
    assert not at_least.passed(3.9)
    assert not at_most.passed(40.0)
    assert Bar("ours", 1, "absent").value(found) is None


def test_every_bar_names_existing_cases() -> None:
    with Curator() as curator, LocalRedis() as redis:
        peers = [*of_curator(curator), *of_redis(redis), *KAZOO]
    names = {case.name for case in (*RAW, *OURS, *FEATURES, *SCALING, *SPARK_TARGETS, *LATENCY, *KILLBILL, *peers)}
    assert {name for bar in BARS for name in (bar.case, bar.other) if name is not None} <= names


def test_percentiles_are_computed_from_sorted_values() -> None:
    assert percentiles([float(value) for value in range(100, 0, -1)]) == {
        "p50_ms": 51.0,
        "p99_ms": 100.0,
        "max_ms": 100.0,
    }


def test_the_figures_of_a_deep_queue_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.deep.ROUNDS", 1)
    monkeypatch.setattr(sys, "argv", ["deep", "--messages", "2000", "--heap", "256", "--json"])
    show_deep()
    figures = {figure["name"]: figure["measured"] for figure in json.loads(capsys.readouterr().out)}
    assert {"put", "a new session's first message", "drained", "drained with 1,000 waiting"} <= set(figures)
    assert figures["put"] > 0
    assert figures["drained"] > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_consumers_beside_curators_are_compared_with_ours_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.beside_curator.MESSAGES", 300)
    alone, together, share, locks = measure_beside_curator(rounds=1)
    assert alone.measured > 0
    assert together.measured > 0
    assert (share.bar, share.at_least) == (0.8, True)
    assert (locks.bar, locks.at_least) == (1.1, False)
    assert locks.measured >= 1


def test_the_cases_of_fairness_are_shown_beside_their_bars(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.fairness.CASES", (one_for_each,))
    monkeypatch.setattr("benchmarks.fairness.SESSIONS", 3)
    monkeypatch.setattr(sys, "argv", ["fairness", "--json"])
    show_fairness()
    (figure,) = json.loads(capsys.readouterr().out)
    assert figure["bar"] == 0.1
    assert figure["measured"] > 0
