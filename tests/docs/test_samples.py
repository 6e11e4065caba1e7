"""The samples on the pages that other tests do not run: units, manifests, command lines, targets and extras."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

import pytest
import typer
from mkdocs.utils.yaml import yaml_load

from aiozkqueue.cli.app import command as the_command
from aiozkqueue.session.credentials import AUTH
from tests.docs.pages import blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
OPERATIONS = ROOT / "docs" / "operations.md"
COMMAND: Any = the_command
# Ends a command within a shell line, or redirects its output.
AFTER = re.compile(r"\s(?:[|&;<#]|\d?>).*$|;.*$")


@dataclass(frozen=True)
class Line:
    """A command line that a page tells the reader to type."""

    page: str
    text: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text)[1:]


def block(language: str) -> str:
    """Return the only block of the page on operations in this language."""
    (found,) = [found_block.text for found_block in blocks(OPERATIONS) if found_block.language == language]
    return found


def member(group: Any, name: str) -> Any:
    """Return the command with this name, with its parameters."""
    _, found, _ = group.resolve_command(typer.Context(group), [name])
    return found


def parsed(words: list[str]) -> dict[str, Any]:
    """Parse the words as a command line, without running it; return the values by parameter names."""
    command, context = COMMAND, typer.Context(COMMAND)
    rest = list(words)
    while hasattr(command, "commands"):
        command = member(command, rest.pop(0))
        context = typer.Context(command, parent=context, info_name=command.name)
    command.parse_args(context, rest)
    found: dict[str, Any] = context.params
    return found


def shown() -> Iterator[Line]:
    """Yield every `aiozkqueue …` on the pages: in blocks that other tests do not run, and in the text."""
    for page in PAGES:
        text = page.read_text()
        for code in blocks(page):
            if code.language in {"sh", "text"}:
                for line in code.text.splitlines():
                    typed = AFTER.sub("", line.removeprefix("$ "))
                    if typed.startswith("aiozkqueue "):
                        yield Line(page.name, typed)
        prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        for span in re.findall(r"`(aiozkqueue [a-z][^`]*)`", prose):
            yield Line(page.name, AFTER.sub("", " ".join(span.split())))


def test_each_command_and_option_that_the_pages_name_exists() -> None:
    lines = list(shown())
    assert len(lines) > 60
    wrong = [f"{line.page}: {line.text}: {what}" for line in lines for what in misspelt(line.words)]
    assert wrong == []


def misspelt(words: list[str]) -> Iterator[str]:
    """Yield unknown commands and options. Placeholders, such as QUEUE, are not checked."""
    command = COMMAND
    while hasattr(command, "commands"):
        name = words.pop(0) if words else ""
        if not name and command is not COMMAND:
            return  # a group of commands, without a command
        first, *alternatives = name.split("|")  # `jobs pause|resume` names two
        unknown = [name for name in (first, *alternatives) if name not in command.commands]
        if unknown:
            yield f"there is no command {unknown[0]!r}"
            return
        command = member(command, first)
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    yield from (f"there is no option {word}" for word in words if word.startswith("--") and word not in known)


def seconds_to_stop() -> float:
    """Return the longest time that a worker on the pages takes to stop: to drain, and to end a lost session."""
    given = parsed(["worker", "shop.workers:listeners"])
    assert given["session_timeout"] is None  # the default, 10
    return float(given["drain_timeout"]) + 10


def seconds_to_start(container: dict[str, Any]) -> float:
    """Return the time for which Kubernetes waits until a container answers its first probe."""
    probe = container["startupProbe"]
    assert probe["httpGet"] == container["livenessProbe"]["httpGet"]
    return float(probe["periodSeconds"] * probe["failureThreshold"])


class Unit(ConfigParser):
    """A systemd unit, whose keys keep their capital letters."""

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def test_the_systemd_unit_starts_a_worker_and_gives_it_time_to_stop() -> None:
    unit = Unit(interpolation=None)
    unit.read_string(block("ini"))
    service = unit["Service"]
    program, *words = shlex.split(service["ExecStart"])
    assert Path(program).name == "aiozkqueue"
    assert parsed(words)["target"] == "shop.workers:listeners"
    assert words[0] == "worker"
    assert float(service["TimeoutStopSec"]) > seconds_to_stop()


@pytest.mark.skipif(which("systemd-analyze") is None, reason="systemd is not here to judge its unit")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    program = Path(sys.executable).parent / "aiozkqueue"
    file = tmp_path / "shop-worker.service"
    file.write_text(re.sub(r"(?<=ExecStart=)\S+", str(program), block("ini")))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, text=True, timeout=150, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_deployment_runs_workers_with_health_probes() -> None:
    deployment = yaml_load(block("yaml"))
    assert (deployment["apiVersion"], deployment["kind"]) == ("apps/v1", "Deployment")
    template = deployment["spec"]["template"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (container,) = template["spec"]["containers"]
    assert container["command"][:2] == ["aiozkqueue", "worker"]
    given = parsed(container["command"][1:])
    assert given["target"] == "shop.workers:listeners"
    assert given["health_host"] == "0.0.0.0"  # the kubelet connects from outside the pod
    (port,) = container["ports"]
    assert port["containerPort"] == given["health_port"]
    annotations = template["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(given["health_port"])
    assert template["spec"]["terminationGracePeriodSeconds"] > seconds_to_stop()
    for probe, path in (("readinessProbe", "/ready"), ("livenessProbe", "/live")):
        assert container[probe]["httpGet"] == {"path": path, "port": port["name"]}
    assert seconds_to_start(container) >= 120
    known = {AUTH} | {parameter.envvar for parameter in member(COMMAND, "worker").params}
    assert {variable["name"] for variable in container["env"]} <= known


def test_the_makefile_has_each_target_that_the_pages_name() -> None:
    targets = set(re.findall(r"^([a-z-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    texts = [page.read_text() for page in PAGES] + [(ROOT / "docker-compose.yml").read_text()]
    named = {name for text in texts for name in re.findall(r"(?:`|^|[0-9] )make ([a-z-]+)", text, re.MULTILINE)}
    assert {"demo", "test", "check", "docs"} <= named
    assert named <= targets


def test_each_extra_that_the_pages_install_exists() -> None:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    named = {
        extra
        for page in PAGES
        for found in re.findall(r"aiozkqueue\[([a-z,]+)\]|extras? `([a-z]+)`", page.read_text())
        for extra in "".join(found).split(",")
    }
    assert {"cli", "embedded", "http", "spark"} <= named
    assert named <= extras


def test_the_compose_file_defines_an_ensemble_of_connected_servers() -> None:
    file = ROOT / "docker-compose.yml"
    compose = yaml_load(file.read_text())
    services = compose["services"]
    configured = dict(re.findall(r"server\.(\d+)=([\w-]+):2888:3888;2181", compose["x-environment"]["ZOO_SERVERS"]))
    assert {service["environment"]["ZOO_MY_ID"]: name for name, service in services.items()} == configured
    ports = [port.rpartition(":")[0] for service in services.values() for port in service["ports"]]
    assert all(port.endswith(":2181") for service in services.values() for port in service["ports"])
    # The addresses in the file's first lines, to which developers connect from this machine only.
    assert f"AIOZKQUEUE_ZOOKEEPER={','.join(ports)} make test" in file.read_text()
    assert all(port.startswith("127.0.0.1:") for port in ports)
    volumes = [volume.partition(":")[0] for service in services.values() for volume in service["volumes"]]
    assert sorted(volumes) == sorted(compose["volumes"])  # each server has its own volumes
    # The variables that the image reads: https://github.com/31z4/zookeeper-docker. It would silently ignore another
    # name.
    assert set(compose["x-environment"]) <= {
        "ZOO_4LW_COMMANDS_WHITELIST",
        "ZOO_ADMINSERVER_ENABLED",
        "ZOO_CFG_EXTRA",
        "ZOO_INIT_LIMIT",
        "ZOO_MAX_CLIENT_CNXNS",
        "ZOO_SERVERS",
        "ZOO_SYNC_LIMIT",
        "ZOO_TICK_TIME",
    }
