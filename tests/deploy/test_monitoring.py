"""Alert rules, the Grafana dashboard and the KEDA recipe use metrics that exist, and agree with the pages."""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest
from mkdocs.utils.yaml import yaml_load

from tests.deploy.conftest import DEPLOY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.deploy.conftest import Promtool

DOCS = DEPLOY.parent / "docs"
#: Labels that Prometheus adds when it scrapes.
SCRAPED = {"instance", "job"}
#: The settings of KEDA's Prometheus scaler: https://keda.sh/docs/latest/scalers/prometheus/
KEDA = {"serverAddress", "query", "threshold", "activationThreshold", "namespace", "ignoreNullValues", "timeout"}


def rules() -> list[dict[str, Any]]:
    (group,) = yaml_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((DEPLOY / "grafana" / "aiozkqueue.json").read_text())
    return loaded


def scaled_object() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml_load((DEPLOY / "kubernetes" / "scaledobject.yaml").read_text())
    return loaded


def page_queries() -> Iterator[str]:
    for page in ("alerts.md", "observability.md"):
        for span in re.findall(r"`([^`\n]*aiozkqueue_[^`\n]*\([^`\n]*)`", (DOCS / page).read_text()):
            yield span.replace("\\|", "|")


def queries() -> dict[str, str]:
    """All expressions in the files and the pages, by their places."""
    found = {f"alert {rule['alert']}": rule["expr"] for rule in rules()}
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            found[f"panel {panel['title']} {target['refId']}"] = target["expr"]
    for trigger in scaled_object()["spec"]["triggers"]:
        found["ScaledObject"] = trigger["metadata"]["query"]
    return found | {f"page: {query}": query for query in page_queries()}


def filled(query: str) -> str:
    """Return a query of Grafana with values for its variables."""
    return query.replace("$__rate_interval", "1m").replace("$queue", ".*")


def uses(query: str) -> Iterator[tuple[str, set[str]]]:
    """Yield the metrics in a query, each with the labels that it must have."""
    text = re.sub(r'"[^"]*"', '""', query)
    grouped = {label.strip() for found in re.findall(r"\b(?:by|on) \(([^)]*)\)", text) for label in found.split(",")}
    for name, matchers in re.findall(r"\b(aiozkqueue_\w+)(?:\{([^}]*)\})?", text):
        yield name, (grouped | set(re.findall(r"(\w+) *(?:=~|!~|!=|=)", matchers))) - SCRAPED


@pytest.fixture
def named() -> dict[str, str]:
    return queries()


@pytest.fixture
def listed() -> dict[str, set[str]]:
    """Return the metrics that the page lists, each with its labels."""
    page = (DOCS / "observability.md").read_text()
    rows = re.findall(r"^\| `(aiozkqueue_\w+)` \| (counter|gauge|histogram) \|([^|]*)\|", page, re.MULTILINE)
    endings = {"counter": "_total", "gauge": "", "histogram": "_bucket"}
    return {
        name.removesuffix("_total") + endings[kind]: set(re.findall(r"`(\w+)`", labels)) for name, kind, labels in rows
    }


async def test_every_metric_that_the_files_and_pages_use_is_exported_with_the_labels_used(
    exported: Mapping[str, set[str]], named: Mapping[str, str]
) -> None:
    assert len(named) > 40
    wrong = [
        f"{place}: {name}{sorted(labels)}"
        for place, query in named.items()
        for name, labels in uses(query)
        if name not in exported or not labels <= exported[name]
    ]
    assert wrong == []


async def test_the_table_of_metrics_lists_what_is_exported_and_nothing_else(
    exported: Mapping[str, set[str]], listed: Mapping[str, set[str]]
) -> None:
    shown = {
        name: labels - {"le"}
        for name, labels in exported.items()
        if not name.endswith(("_created", "_sum", "_count")) and name.startswith("aiozkqueue_")
    }
    assert listed == shown


def test_prometheus_accepts_the_alert_rules_and_they_fire_when_they_should(promtool: Promtool) -> None:
    folder = DEPLOY / "prometheus"
    assert f"SUCCESS: {len(rules())} rules found" in promtool("check", "rules", folder / "alerts.yml")
    promtool("test", "rules", folder / "alerts_test.yml")
    tests = yaml_load((folder / "alerts_test.yml").read_text())["tests"]
    fired = {
        rule_test["alertname"] for test in tests for rule_test in test["alert_rule_test"] if "exp_alerts" in rule_test
    }
    assert fired == {rule["alert"] for rule in rules()}


def test_prometheus_accepts_every_query_of_the_dashboard_the_recipe_and_the_pages(
    promtool: Promtool, tmp_path: Path
) -> None:
    records = [{"record": f"check:{number}", "expr": filled(query)} for number, query in enumerate(queries().values())]
    file = tmp_path / "queries.yml"
    file.write_text(json.dumps({"groups": [{"name": "queries", "rules": records}]}))
    promtool("check", "rules", file)


def test_the_page_on_alerts_explains_each_rule() -> None:
    page = (DOCS / "alerts.md").read_text()
    listed = re.findall(r"^\| `(Aiozkqueue\w+)` \|", page, re.MULTILINE)
    assert listed == [rule["alert"] for rule in rules()]
    for rule in rules():
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert set(rule["annotations"]) == {"summary", "description"}


def test_the_dashboard_has_the_form_that_grafana_imports() -> None:
    loaded = dashboard()
    assert {"uid", "title", "schemaVersion", "panels", "templating", "time"} <= set(loaded)
    variables = {variable["name"]: variable for variable in loaded["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["queue"]["definition"] == "label_values(aiozkqueue_queue_messages, queue)"
    panels = loaded["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        if panel["type"] == "row":
            continue
        assert panel["type"] in {"stat", "timeseries"}
        references = [target["refId"] for target in panel["targets"]]
        assert references
        assert len(set(references)) == len(references)
        assert all(target["datasource"]["uid"] == "${datasource}" for target in [panel, *panel["targets"]])
    for first, other in combinations([panel["gridPos"] for panel in panels], 2):
        apart_in_width = first["x"] + first["w"] <= other["x"] or other["x"] + other["w"] <= first["x"]
        below = first["y"] + first["h"] <= other["y"] or other["y"] + other["h"] <= first["y"]
        assert apart_in_width or below


def test_the_keda_recipe_scales_on_ready_messages_of_a_queue_that_is_not_paused() -> None:
    loaded = scaled_object()
    assert (loaded["apiVersion"], loaded["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    spec = loaded["spec"]
    assert 1 <= spec["minReplicaCount"] <= spec["fallback"]["replicas"] <= spec["maxReplicaCount"]
    (trigger,) = spec["triggers"]
    assert trigger["type"] == "prometheus"
    settings = trigger["metadata"]
    assert set(settings) <= KEDA
    assert all(isinstance(value, str) for value in settings.values())  # KEDA accepts nothing else
    measured = {name.removeprefix("aiozkqueue_queue_") for name, _ in uses(settings["query"])}
    assert measured == {"waiting", "in_flight", "paused"}


@pytest.mark.parametrize(
    ("series", "workers"),
    [
        ({"waiting": 0, "in_flight": 0, "paused": 0}, 0),
        ({"waiting": 90, "in_flight": 10, "paused": 0}, 100),
        ({"waiting": 90, "in_flight": 10, "paused": 1}, 0),
        ({}, 0),
    ],
)
def test_the_query_of_the_recipe_counts_messages_that_workers_can_take(
    promtool: Promtool, tmp_path: Path, series: dict[str, int], workers: int
) -> None:
    query = scaled_object()["spec"]["triggers"][0]["metadata"]["query"]
    given = [
        {"series": f'aiozkqueue_queue_{name}{{queue="orders", instance="{instance}"}}', "values": str(value)}
        for name, value in series.items()
        for instance in "ab"
    ]
    given.append({"series": 'aiozkqueue_queue_waiting{queue="others", instance="a"}', "values": "7"})
    expected = {"expr": query, "eval_time": "0s", "exp_samples": [{"labels": "{}", "value": workers}]}
    file = tmp_path / "test.yml"
    file.write_text(json.dumps({"tests": [{"input_series": given, "promql_expr_test": [expected]}]}))
    promtool("test", "rules", file)
