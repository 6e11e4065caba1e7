"""A development server in the foreground."""

from __future__ import annotations

import json
import signal
import time
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Cli


def test_zookeeper_prints_its_address_serves_and_exits_without_leaving_a_process(cli: Cli) -> None:
    server = cli.start("zookeeper", "--port", "0")
    assert server.stdout is not None
    hosts = server.stdout.readline().decode().strip()
    assert cli("put", "q", "hello", "--hosts", hosts).status == 0
    children = psutil.Process(server.pid).children(recursive=True)
    assert children
    server.send_signal(signal.SIGTERM)
    assert server.wait(90) == 0
    assert not psutil.wait_procs(children, timeout=60)[1]


def test_zookeeper_keeps_its_data_in_a_folder_between_runs(cli: Cli, tmp_path: Path) -> None:
    for attempt in range(2):
        server = cli.start("zookeeper", "--port", "0", "--data-dir", str(tmp_path), "--json")
        assert server.stdout is not None
        hosts = json.loads(server.stdout.readline())["hosts"]
        if attempt == 0:
            cli("put", "q", "kept", "--hosts", hosts)
        else:
            assert cli("consume", "q", "--hosts", hosts).text == "kept\n"
        server.send_signal(signal.SIGINT)
        assert server.wait(90) == 0


def test_zookeeper_exits_with_1_when_the_server_dies(cli: Cli) -> None:
    server = cli.start("zookeeper", "--port", "0")
    assert server.stdout is not None
    assert server.stderr is not None
    server.stdout.readline()
    [java] = [p for p in psutil.Process(server.pid).children(recursive=True) if "java" in p.name()]
    java.kill()
    assert server.wait(90) == 1
    assert b"stopped unexpectedly" in server.stderr.read()


def test_a_taken_port_exits_with_1_and_one_line(cli: Cli) -> None:
    first = cli.start("zookeeper", "--port", "0")
    assert first.stdout is not None
    port = first.stdout.readline().decode().strip().rpartition(":")[2]
    second = cli("zookeeper", "--port", port)
    assert second.status == 1
    assert len(second.stderr.splitlines()) == 1
    assert "is in use" in second.stderr


@pytest.mark.slow
def test_a_message_put_at_one_server_of_the_ensemble_is_taken_at_another(cli: Cli) -> None:
    servers = cli.start("zookeeper", "--ensemble", "--port", "0")
    assert servers.stdout is not None
    hosts = servers.stdout.readline().decode().strip()
    assert len(hosts.split(",")) == 3
    assert cli("put", "q", "hello", "--hosts", hosts).status == 0
    deadline = time.monotonic() + 60
    while (consumed := cli("consume", "q", "--hosts", hosts.split(",")[2])).status and time.monotonic() < deadline:
        time.sleep(0.2)
    assert consumed.text == "hello\n"
    servers.send_signal(signal.SIGTERM)
    assert servers.wait(90) == 0
