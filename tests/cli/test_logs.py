"""The logs of `serve` and `jobs run`; `test_worker.py` tests those of the worker."""

from __future__ import annotations

import json
import re
import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("service", [("serve", "--port", "0", "--admin-port", "0"), ("jobs", "run")], ids=" ".join)
def test_each_service_logs_its_connections_with_time_and_level(cli: Cli, service: tuple[str, ...]) -> None:
    running = cli.start(*service, "--log-format", "json")
    assert running.stderr is not None
    record = json.loads(running.stderr.readline())
    assert record["time"].endswith("+00:00")
    assert (record["level"], record["logger"]) == ("info", "aiozkqueue.zookeeper.outage")
    assert re.fullmatch(r"new session 0x[0-9a-f]+ at \S+, timeout [0-9.]+ s", record["message"])
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=90)


def test_a_service_logs_only_from_the_given_level_on(cli: Cli) -> None:
    running = cli.start("serve", "--port", "0", "--admin-port", "0", "--log-level", "warning")
    assert running.stdout is not None
    assert running.stdout.readline().startswith(b"http://")
    running.send_signal(signal.SIGTERM)
    _, log = running.communicate(timeout=90)
    assert (running.returncode, log) == (0, b"")
