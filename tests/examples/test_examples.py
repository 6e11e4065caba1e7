"""Each example does what its first lines describe, as a separate process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.testing.ports import free_ports
from tests.complaints import complaints

if TYPE_CHECKING:
    from aiozkqueue.testing import EmbeddedZooKeeper

pytestmark = pytest.mark.timeout(300)

#: Seconds within which a process must act, even on a busy machine.
PATIENCE = 100.0
#: What the command says of a queue that the first example has not created yet, or that has no dead letters yet.
NOTHING = re.compile(r"aiozkqueue: [^\n]*\bno (queue|dead letters)\b[^\n]*\n")

EXAMPLES = Path(__file__).parents[2] / "examples"
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def environment(embedded_server: Callable[[], EmbeddedZooKeeper]) -> dict[str, str]:
    return os.environ | {"AIOZKQUEUE_HOSTS": embedded_server().hosts, "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def start(environment: dict[str, str]) -> Iterator[Start]:
    with ExitStack() as stack:

        def started(*command: str) -> subprocess.Popen[str]:
            return stack.enter_context(_running([sys.executable, *command], environment))

        yield started


@contextmanager
def _running(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def command(environment: dict[str, str]) -> Callable[..., str]:
    def run(*arguments: str, text: str = "") -> str:
        done = subprocess.run(
            [sys.executable, "-m", "aiozkqueue", *arguments],
            env=environment,
            input=text,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        nothing_found = done.returncode == 1 and NOTHING.fullmatch(done.stderr)
        assert nothing_found or not complaints(done.stderr), done.stderr
        return done.stdout

    return run


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def test_the_worker_ships_orders_and_gives_up_on_impossible_ones(start: Start, command: Callable[..., str]) -> None:
    worker = start(str(EXAMPLES / "worker.py"))
    command("put", "orders", '{"id": 1, "article": "unicorn"}')
    command("put", "orders", '{"id": 2, "article": "teapot"}')
    assert _line(worker) == "shipped teapot"
    deadline = time.monotonic() + PATIENCE
    while not (dead := command("dlq", "list", "orders", "--json")) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert json.loads(json.loads(dead)["body"])["article"] == "unicorn"


def test_the_pipeline_turns_orders_into_invoices(start: Start, command: Callable[..., str]) -> None:
    command("purge", "orders", "--yes")
    command("dlq", "purge", "orders", "--yes")
    command("put", "orders", '{"id": 1, "cents": 1000}')
    command("put", "orders", '{"id": 2, "cents": 0}')
    pipeline = start(str(EXAMPLES / "pipeline.py"))
    assert _line(pipeline).startswith("order 1 -> invoice ")
    invoice = json.loads(json.loads(command("peek", "invoices", "--json"))["body"])
    assert invoice == {"order": 1, "cents": 1000, "tax": 190}
    deadline = time.monotonic() + PATIENCE
    while not (dead := command("dlq", "list", "orders", "--json")) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert "nothing to pay" in json.loads(dead)["reason"]


def test_the_service_finishes_messages_in_flight_when_it_is_stopped(start: Start, command: Callable[..., str]) -> None:
    command("put", "numbers", "--lines", text="\n".join(map(str, range(-1, 20))))
    service = start(str(EXAMPLES / "service.py"))
    assert {_line(service) for _ in range(20)} == {str(n * n) for n in range(20)}
    service.send_signal(signal.SIGTERM)
    rest, errors = service.communicate(timeout=PATIENCE)
    assert rest == "drained\n", errors
    assert service.returncode == 0
    assert "natural" in json.loads(command("dlq", "list", "numbers", "--json"))["reason"]


def test_the_back_end_queues_accepted_orders_only(start: Start, command: Callable[..., str]) -> None:
    command("purge", "orders", "--yes")
    (port,) = free_ports(1)
    start(
        "-m",
        "uvicorn",
        "--app-dir",
        str(EXAMPLES),
        "--port",
        str(port),
        "--log-level",
        "warning",
        "fastapi_backend:app",
    )
    url = f"http://127.0.0.1:{port}/orders"
    assert _until_it_serves(f"{url}/waiting") == {"waiting": 0}

    def order(article: str) -> urllib.request.Request:
        body = json.dumps({"id": 5, "article": article}).encode()
        return urllib.request.Request(url, body, {"Content-Type": "application/json"})

    with urllib.request.urlopen(order("teapot"), timeout=PATIENCE) as response:
        accepted = json.load(response)["accepted"]
    with pytest.raises(urllib.error.HTTPError, match="409") as refused:
        urllib.request.urlopen(order("unicorn"), timeout=PATIENCE)
    refused.value.close()
    [waiting] = command("peek", "orders", "--json").splitlines()
    assert json.loads(waiting)["id"] == accepted
    assert len(command("peek", "audit", "--json").splitlines()) == 1


def test_the_http_service_is_mounted_next_to_the_routes_of_the_application(
    start: Start, environment: dict[str, str]
) -> None:
    (port,) = free_ports(1)
    environment["PORT"] = str(port)
    service = start(str(EXAMPLES / "http_service.py"))
    url = f"http://127.0.0.1:{port}"
    assert _until_it_serves(f"{url}/hello") == {"hello": "world"}
    queue = f"{url}/queues/queue/1/public-orders"
    request = urllib.request.Request(f"{queue}/send", b'{"order": 1}', {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as response:
        assert json.load(response) == {"success": True}
    with urllib.request.urlopen(f"{queue}/poll", timeout=PATIENCE) as response:
        (message,) = json.load(response)
    assert message["payload"] == {"order": 1}
    with urllib.request.urlopen(f"{url}/queues/queue/1/public-orders/size", timeout=PATIENCE) as response:
        assert json.load(response) == 1
    service.send_signal(signal.SIGTERM)
    service.communicate(timeout=PATIENCE)


def _until_it_serves(url: str) -> object:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as response:
                return json.load(response)
        except OSError:  # it does not accept connections yet
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
