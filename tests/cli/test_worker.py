"""`aiozkqueue worker`: how listeners are found, stopped and observed."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.cli.worker import _find_modules_of
from tests.complaints import complaints

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

# A handler prints `started`, and continues when the file `go` exists.
MODULE = """
from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from pathlib import Path

from pydantic import BaseModel

import aiozkqueue as zq

GO = Path(__file__).with_name("go")


class Order(BaseModel):
    id: int


async def slow(delivery: zq.Delivery[Order]) -> None:
    print(f"started {delivery.value.id}\\n", end="", flush=True)  # one write, since several processes share the pipe
    while not await asyncio.to_thread(GO.exists):
        await asyncio.sleep(0.05)
    delivery.put("done", str(delivery.value.id).encode())


async def patient(delivery: zq.Delivery[Order]) -> None:
    print("started", delivery.value.id, flush=True)
    try:
        await asyncio.sleep(3600 if delivery.value.id == 1 else 0)
    except asyncio.CancelledError:
        print("cancelled", delivery.value.id, flush=True)
        raise


async def plain(delivery) -> None:
    print("plain", delivery.body.decode(), flush=True)


async def tell_loop(delivery):
    print("loop", type(asyncio.get_running_loop()).__module__, flush=True)


async def fails(delivery):
    1 / 0


async def three(payments, shipments, delivery: zq.Delivery[Order]) -> None: ...


async def blocking(delivery):
    print("blocking", flush=True)
    while not GO.exists():
        time.sleep(0.05)


def not_async(delivery: zq.Delivery[Order]) -> None: ...


def typed(session: zq.QueueSession) -> zq.Listener[Order]:
    return session.listener(session.queue("orders", Order), slow)


def listener(session):
    return session.listener(session.queue("orders", Order), slow)


@asynccontextmanager
async def several(session):
    print("opened", flush=True)
    yield [session.listener(session.queue(name, Order), slow) for name in ("orders", "more")]
    print("closed", flush=True)


@asynccontextmanager
async def lingering(session):
    yield session.listener(session.queue("orders", Order), slow)
    print("closing", flush=True)
    try:
        await asyncio.sleep(600)
    finally:
        print("cut short", flush=True)


def nothing(session):
    return []


number = 7
app = zq.App("127.0.0.1:1", session_timeout=20)
words = app.queue("words", str)


@app.listener(words)
async def count(delivery: zq.Delivery[str]) -> None:
    print("counted", len(delivery.value), flush=True)
"""

LOGS = {
    "version": 1,
    "formatters": {"ours": {"format": "OURS %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "ours"}},
    "root": {"level": "INFO", "handlers": ["stderr"]},
}
LOGS_TOML = """
version = 1
root = {level = "INFO", handlers = ["stderr"]}
[formatters.ours]
format = "OURS %(message)s"
[handlers.stderr]
class = "logging.StreamHandler"
formatter = "ours"
"""
LOGS_INI = """
[loggers]
keys = root
[handlers]
keys = stderr
[formatters]
keys = ours
[logger_root]
level = INFO
handlers = stderr
[handler_stderr]
class = StreamHandler
formatter = ours
args = ()
[formatter_ours]
format = OURS %(message)s
"""


@pytest.fixture
def go(cli: Cli, tmp_path: Path) -> Path:
    """The file that lets the handlers of the module ``shop`` continue."""
    (tmp_path / "shop.py").write_text(MODULE)
    cli.environment["PYTHONPATH"] = f"{tmp_path}:{cli.environment.get('PYTHONPATH', '')}"
    return tmp_path / "go"


def _line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


def _wait_for_line(worker: subprocess.Popen[bytes], text: str) -> str:
    """Read the worker's log until a line contains this text; return the line."""
    assert worker.stderr is not None
    for line in worker.stderr:
        if text.encode() in line:
            return line.decode().strip()
    pytest.fail(f"the worker has ended without logging {text!r}")


def _stop(worker: subprocess.Popen[bytes]) -> None:
    """Ask the worker to stop, and wait until it logs the signal."""
    worker.send_signal(signal.SIGTERM)
    _wait_for_line(worker, "SIGTERM: stopping; handlers may finish within ")


def _health_port(worker: subprocess.Popen[bytes]) -> int:
    return int(_wait_for_line(worker, "health at http://").rpartition(":")[2])


def _asked(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as response:
            return response.status, response.read().decode().strip()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode().strip()


def _until_answered(port: int, path: str, answer: tuple[int, str]) -> None:
    deadline = time.monotonic() + 90
    while True:
        try:
            if _asked(port, path) == answer:
                return
        except OSError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _may_be_first() -> bool:
    """Whether this user may start a process as the first one of a namespace, as in a container."""
    command = ["unshare", "--pid", "--fork", "true"]
    return which("unshare") is not None and subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_a_handler_gets_its_annotated_type_and_finishes_when_the_worker_stops(cli: Cli, go: Path) -> None:
    cli("put", "orders", "--lines", stdin=b'{"id": 1}\n{"id": 2}\n{"id": 3}')
    worker = cli.start("worker", "shop:slow", "--queue", "orders", "--concurrency", "2")
    assert {_line(worker), _line(worker)} == {"started 1", "started 2"}
    _stop(worker)
    go.touch()
    rest, log = worker.communicate(timeout=90)
    assert (worker.returncode, rest) == (0, b""), log
    assert {record["body"] for record in cli("peek", "done", "--json").records} == {"1", "2"}
    assert [record["body"] for record in cli("peek", "orders", "--json").records] == ['{"id": 3}']


def test_a_worker_ends_by_itself_when_no_message_has_come_for_the_given_time(cli: Cli, go: Path) -> None:
    go.touch()
    cli("put", "orders", "--lines", stdin=b'{"id": 1}\n{"id": 2}')
    ended = cli("worker", "shop:slow", "--queue", "orders", "--until-idle", "3")
    assert ended.status == 0, ended.stderr
    assert "no listener has had a message for 3 s: stopping" in ended.stderr
    assert {record["body"] for record in cli("peek", "done", "--json").records} == {"1", "2"}


@pytest.mark.parametrize("value", ["0", "-1", "inf"])
def test_a_time_in_which_no_worker_could_be_idle_is_refused(cli: Cli, go: Path, value: str) -> None:
    assert not go.exists()
    refused = cli("worker", "shop:slow", "--queue", "orders", f"--until-idle={value}")
    assert (refused.status, "--until-idle" in refused.stderr) == (2, True), refused.stderr


def test_cancelling_a_message_in_flight_ends_its_handler_and_the_worker_continues(cli: Cli, go: Path) -> None:
    assert not go.exists()
    message_id = cli("put", "orders", '{"id": 1}').text.strip()
    worker = cli.start("worker", "shop:patient", "--queue", "orders")
    assert _line(worker) == "started 1"
    held = cli("cancel", "orders", message_id)
    assert (held.status, "--running also removes" in held.stderr) == (1, True), held.stderr
    assert cli("cancel", "orders", message_id, "--running").status == 0
    assert _line(worker) == "cancelled 1"
    assert cli("cancel", "orders", message_id, "--running").status == 1
    cli("put", "orders", '{"id": 2}')
    assert _line(worker) == "started 2"
    while cli("stats", "orders", "--json").records[0]["size"]:
        time.sleep(0.05)
    _stop(worker)
    rest, log = worker.communicate(timeout=90)
    assert (worker.returncode, rest) == (0, b""), log


def test_a_worker_runs_an_application_with_the_connection_of_the_command(cli: Cli, go: Path) -> None:
    assert not go.exists()
    cli("put", "words", '"teapot"')
    worker = cli.start("worker", "shop:app")  # the variables contain the server and the root of the test
    assert _line(worker) == "counted 6"
    _stop(worker)
    _, log = worker.communicate(timeout=90)
    assert worker.returncode == 0, log


def test_a_worker_prints_a_line_for_each_service_that_starts_and_stops_with_its_figures(cli: Cli, go: Path) -> None:
    go.touch()
    cli("put", "orders", "--lines", stdin=b'{"id": 1}\n{"id": 2}')
    worker = cli.start("worker", "shop:several")
    started = {_wait_for_line(worker, "started: ").partition("started: ")[2] for _ in range(2)}
    line = "listener of queue {}: shop.slow, concurrency 1"
    assert started == {line.format("orders"), line.format("more")}
    assert [_line(worker) for _ in range(3)] == ["opened", "started 1", "started 2"]
    while cli("stats", "orders", "--json").records[0]["size"]:
        time.sleep(0.05)
    _stop(worker)
    stopped = sorted(_wait_for_line(worker, "stopped: ").partition("stopped: ")[2] for _ in range(2))
    worker.communicate(timeout=90)
    assert stopped[0].startswith(f"{line.format('more')}: 0 messages handled, 0 failed in ")
    assert stopped[1].startswith(f"{line.format('orders')}: 2 messages handled, 0 failed in ")


def test_a_worker_names_the_listener_whose_handlers_are_late(cli: Cli, go: Path) -> None:
    assert not go.exists()
    cli("put", "orders", '{"id": 1}')
    worker = cli.start("worker", "shop:listener", "--drain-timeout", "0.1")
    assert _line(worker) == "started 1"
    worker.send_signal(signal.SIGTERM)
    line = _wait_for_line(worker, "handlers did not finish within 0.1 s")
    assert "listener of queue orders: shop.slow, concurrency 1: handlers did not" in line
    worker.communicate(timeout=90)
    assert worker.returncode == 0


def test_several_processes_share_a_queue_and_a_killed_one_is_replaced(cli: Cli, go: Path) -> None:
    assert not go.exists()
    worker = cli.start("worker", "shop:listener", "--processes", "2")
    pids = [int(_wait_for_line(worker, "started process ").rpartition(" ")[2]) for _ in range(2)]
    cli("put", "orders", "--lines", stdin=b'{"id": 1}\n{"id": 2}')
    assert {_line(worker), _line(worker)} == {"started 1", "started 2"}  # each process handles one message at a time
    os.kill(pids[0], signal.SIGKILL)
    assert f"process {pids[0]} was killed by SIGKILL: starting another" in _wait_for_line(worker, "was killed by")
    assert int(_wait_for_line(worker, "started process ").rpartition(" ")[2]) not in pids
    go.touch()
    deadline = time.monotonic() + 90
    while cli("stats", "orders", "--json").records[0]["size"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=90)
    assert worker.returncode == 0
    assert {record["body"] for record in cli("peek", "done", "--json").records} == {"1", "2"}


def test_each_line_of_the_logs_of_several_processes_names_its_process(cli: Cli, go: Path) -> None:
    go.touch()
    worker = cli.start("worker", "shop:listener", "--processes", "2")
    assert worker.stderr is not None
    started, connected = set[str](), set[str]()
    while len(started) < 2 or not started <= connected:
        line = worker.stderr.readline().decode()
        match = re.fullmatch(r"\S+ \S+ INFO \[(\d+)\] [\w.]+: (.+)\n", line)
        assert match is not None, line
        process, message = match.groups()
        if message.startswith("started process "):
            assert process == str(worker.pid)
            started.add(message.rpartition(" ")[2])
        elif message.startswith("new session 0x"):
            connected.add(process)
    worker.send_signal(signal.SIGTERM)
    _, rest = worker.communicate(timeout=90)
    assert all(" [" in line for line in rest.decode().splitlines())


def test_processes_that_cannot_start_end_the_command_with_their_status(cli: Cli, go: Path) -> None:
    assert not go.exists()
    done = cli.in_new_process("worker", "shop:missing", "--processes", "2")
    assert done.status == 2
    assert "has no 'missing'" in done.stderr


@pytest.mark.parametrize(("option", "kind"), [("auto", "uvloop"), ("uvloop", "uvloop"), ("asyncio", "asyncio")])
def test_a_worker_runs_on_uvloop_if_it_is_installed(cli: Cli, go: Path, option: str, kind: str) -> None:
    assert not go.exists()
    cli("put", "words", "x")
    worker = cli.start("worker", "shop:tell_loop", "--queue", "words", "--loop", option)
    assert _line(worker).startswith(f"loop {kind}")
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=90)
    assert worker.returncode == 0


def test_a_worker_logs_json_objects_with_their_fields(cli: Cli, go: Path) -> None:
    assert not go.exists()
    message_id = cli("put", "words", "x").text.strip()
    worker = cli.start("worker", "shop:fails", "--queue", "words", "--log-format", "json")
    record = json.loads(_wait_for_line(worker, "handler failed"))
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=90)
    assert (record["level"], record["queue"], record["message_id"]) == ("warning", "words", message_id)
    assert record["message"].startswith(f"queue words: handler failed on message {message_id}, attempt 1")
    assert "ZeroDivisionError" in record["exception"]
    assert record["time"].endswith("+00:00")


@pytest.mark.parametrize("suffix", ["json", "toml", "ini"])
def test_a_worker_logs_as_a_configuration_file_says(cli: Cli, go: Path, tmp_path: Path, suffix: str) -> None:
    assert not go.exists()
    (tmp_path / "logs.json").write_text(json.dumps(LOGS))
    (tmp_path / "logs.toml").write_text(LOGS_TOML)
    (tmp_path / "logs.ini").write_text(LOGS_INI)
    worker = cli.start("worker", "shop:listener", "--log-config", str(tmp_path / f"logs.{suffix}"))
    assert _wait_for_line(worker, "started: ").startswith("OURS started: listener of queue orders")
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=90)
    assert worker.returncode == 0


def test_a_file_that_does_not_configure_logging_is_reported_in_one_line(cli: Cli, go: Path, tmp_path: Path) -> None:
    assert not go.exists()
    (tmp_path / "logs.json").write_text('{"version": 7}')
    done = cli("worker", "shop:listener", "--log-config", str(tmp_path / "logs.json"))
    assert done.status == 2
    assert done.stderr.startswith("aiozkqueue: --log-config: ")
    assert "Traceback" not in done.stderr


def test_a_second_signal_cancels_the_handlers_and_releases_their_messages(cli: Cli, go: Path) -> None:
    assert not go.exists()
    cli("put", "orders", '{"id": 1}')
    worker = cli.start("worker", "shop:listener")
    assert _line(worker) == "started 1"
    _stop(worker)
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=90)
    assert worker.returncode == 0
    [stats] = cli("stats", "orders", "--json").records
    assert (stats["size"], stats["in_flight"]) == (1, 0)
    assert "there is no queue 'done'" in cli("stats", "done").stderr


def test_a_second_signal_while_the_worker_closes_ends_it_without_killing_it(cli: Cli, go: Path) -> None:
    go.touch()
    cli("put", "orders", '{"id": 1}')
    worker = cli.start("worker", "shop:lingering", "--session-timeout", "20")
    assert _line(worker) == "started 1"
    _stop(worker)
    assert _line(worker) == "closing"
    worker.send_signal(signal.SIGTERM)
    rest, log = worker.communicate(timeout=90)
    assert (worker.returncode, rest) == (0, b"cut short\n"), log
    [stats] = cli("stats", "orders", "--json").records
    assert stats["consumers"] == 0, "its session has ended with it, not 20 s later"


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_worker_that_is_stopped_before_it_has_begun_exits_with_0(cli: Cli, go: Path, number: signal.Signals) -> None:
    assert not go.exists()
    unreachable = ("--hosts", "127.0.0.1:1", "--connect-timeout", "300")
    worker = cli.start("worker", "shop:listener", "--health-port", "0", *unreachable)
    _until_answered(_health_port(worker), "/ready", (503, "connecting"))
    worker.send_signal(number)
    _, log = worker.communicate(timeout=90)
    assert worker.returncode == 0, log


@pytest.mark.skipif(not _may_be_first(), reason="a namespace of process ids needs Linux, util-linux and root")
def test_the_first_process_of_a_container_ends_by_sigterm_although_it_still_imports(cli: Cli, go: Path) -> None:
    (go.parent / "late.py").write_text(
        "import pathlib, time\n"
        "print('importing', flush=True)\n"
        "while not pathlib.Path(__file__).with_name('go').exists():\n"
        "    time.sleep(0.05)\n"
    )
    command = [sys.executable, "-c", "from aiozkqueue_completion import main; main()", "worker", "late:listener"]
    container = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", *command], env=cli.environment, stdout=subprocess.PIPE
    )
    with container:
        cli.stack.callback(container.kill)
        assert _line(container) == "importing"
        children = (Path("/proc") / str(container.pid) / "task" / str(container.pid) / "children").read_text()
        os.kill(int(children), signal.SIGTERM)
        try:
            assert container.wait(45) == 128 + signal.SIGTERM
        finally:
            go.touch()


def test_a_worker_is_ready_until_it_is_signalled_and_live_until_it_exits(cli: Cli, go: Path) -> None:
    cli("put", "more", '{"id": 1}')
    worker = cli.start("worker", "shop:several", "--health-port", "0")
    port = _health_port(worker)
    assert (_line(worker), _line(worker)) == ("opened", "started 1")
    _until_answered(port, "/ready", (200, "ready"))
    assert _asked(port, "/live?verbose") == (200, "live")
    assert _asked(port, "/nothing")[0] == 404
    status, metrics = _asked(port, "/metrics")
    assert status == 200
    assert 'aiozkqueue_messages_claimed_total{queue="more"} 1.0' in metrics
    worker.send_signal(signal.SIGTERM)
    _until_answered(port, "/ready", (503, "stopping"))
    assert _asked(port, "/live") == (200, "live")
    go.touch()
    rest, _ = worker.communicate(timeout=90)
    assert (worker.returncode, rest) == (0, b"closed\n")


def test_a_worker_names_the_health_port_that_is_in_use_before_it_takes_a_message(cli: Cli, go: Path) -> None:
    go.touch()
    cli("put", "orders", '{"id": 1}')
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = cli.in_new_process("worker", "shop:listener", "--health-port", str(port))
        refused = f"--health-host 127.0.0.1 --health-port {port}: Address already in use; another process uses it: "
        assert (done.status, done.stderr.startswith(f"aiozkqueue: {refused}choose another port")) == (1, True), (
            done.stderr
        )
        assert [record["body"] for record in cli("peek", "orders", "--json").records] == ['{"id": 1}']
        for first, process in ((port, 1), (port - 1, 2)):  # refused before a process starts
            several = cli.in_new_process("worker", "shop:listener", "--health-port", str(first), "--processes", "2")
            refused = (
                f"aiozkqueue: --health-host 127.0.0.1 --health-port {port} (process {process}): Address already in"
            )
            assert (several.status, several.stderr.count("\n")) == (1, 1), several.stderr
            assert several.stderr.startswith(refused), several.stderr
        beyond = cli.in_new_process("worker", "shop:listener", "--health-port", "65535", "--processes", "2")
        assert (beyond.status, beyond.stderr.count("\n")) == (1, 1), beyond.stderr
    nowhere = cli.in_new_process("worker", "shop:listener", "--health-port", "0", "--health-host", "nowhere.invalid")
    assert (nowhere.status, "--health-host nowhere.invalid --health-port 0: " in nowhere.stderr) == (1, True)
    assert "Traceback" not in nowhere.stderr


def test_a_worker_without_a_server_is_not_ready_and_exits_with_3(cli: Cli, go: Path) -> None:
    assert not go.exists()
    worker = cli.start(
        "worker", "shop:listener", "--health-port", "0", "--hosts", "127.0.0.1:1", "--connect-timeout", "5"
    )
    port = _health_port(worker)
    _until_answered(port, "/ready", (503, "connecting"))
    _, log = worker.communicate(timeout=90)
    assert worker.returncode == 3, log


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["shop"], "give module:name"),
        (["shop:missing"], "has no 'missing'; it has the application 'app'"),
        (["shop:number.missing"], "has no 'number.missing'"),
        (["nowhere:listener"], "no module 'nowhere'"),
        (["shop.py:listener"], "give the module, not its file: shop:listener"),
        (["shop:number"], "'shop:number' is of type int: it must be an application, or a function"),
        (["shop:app", "--queue", "orders"], "an application declares its queues itself"),
        (["shop:nothing"], "nothing to run"),
        (["shop:three"], "name its queue with --queue"),
        (["shop:three", "--queue", "orders"], "a handler is called with one argument, the delivery"),
        (["shop:plain"], "name its queue with --queue"),
        (["shop:listener", "--concurrency", "3"], "--concurrency requires --queue"),
        (["shop:typed", "--queue", "orders"], "takes a session, so it creates the listeners itself: omit --queue"),
        (["shop:not_async", "--queue", "orders"], "a handler must be awaitable; make it an `async def`"),
    ],
)
def test_an_invalid_handler_is_reported_in_one_line(cli: Cli, go: Path, arguments: list[str], error: str) -> None:
    assert not go.exists()
    done = cli("worker", *arguments)
    assert done.status == 2
    assert error in done.stderr
    assert "Traceback" not in done.stderr


FAILING = """
import json

def loaded():
    return json.loads("{")

def failing(session):
    loaded()

from contextlib import asynccontextmanager

@asynccontextmanager
async def unopened(session):
    loaded()
    yield []
"""


@pytest.mark.parametrize(
    ("code", "name", "lines", "end"),
    [
        (
            f"{FAILING}\nloaded()",
            "any",
            ["in <module>", "in loaded"],
            "module 'own' cannot be imported: JSONDecodeError: ",
        ),
        ("import nowhere_at_all", "any", ["in <module>"], "module 'own' cannot be imported: ModuleNotFoundError: "),
        ("def any(:", "any", [], "module 'own' cannot be imported: SyntaxError: "),
        (FAILING, "failing", ["in failing", "in loaded"], "the listeners could not be created: JSONDecodeError: "),
        (FAILING, "unopened", ["in unopened", "in loaded"], "the listeners could not be created: JSONDecodeError: "),
    ],
    ids=["import", "missing package", "syntax", "function", "context manager"],
)
def test_a_failure_of_the_users_code_is_shown_from_the_users_code_on(
    cli: Cli, tmp_path: Path, code: str, name: str, lines: list[str], end: str
) -> None:
    (tmp_path / "own.py").write_text(code)
    worker = cli.start_in(tmp_path, "worker", f"own:{name}")
    _, shown = worker.communicate(timeout=90)
    text = complaints(shown.decode()).splitlines()
    places = [line for line in text if line.startswith("  File ")]
    assert all("own.py" in place for place in places[: max(1, len(lines))]), places
    assert [place.rpartition(", ")[2] for place in places[: len(lines)]] == lines
    assert not [place for place in places if "typer" in place or "/aiozkqueue/" in place or "importlib" in place]
    assert (worker.returncode, text[-1].startswith("aiozkqueue: "), end in text[-1]) == (1, True, True), text[-1]


def test_a_handler_without_annotation_gets_bytes(cli: Cli, go: Path) -> None:
    assert not go.exists()
    cli("put", "words", "hello")
    worker = cli.start("worker", "shop:plain", "--queue", "words")
    assert _line(worker) == "plain hello"
    worker.send_signal(signal.SIGINT)
    worker.communicate(timeout=90)
    assert worker.returncode == 0


def test_sigusr1_shows_where_each_handler_waits_and_its_message(cli: Cli, go: Path) -> None:
    message_id = cli("put", "orders", '{"id": 1}').text.strip()
    worker = cli.start("worker", "shop:listener")
    assert _line(worker) == "started 1"
    worker.send_signal(signal.SIGUSR1)
    assert worker.stderr is not None
    report = b""
    while b"asyncio.sleep(0.05)" not in report and b"to_thread" not in report:
        line = worker.stderr.readline()
        assert line, report
        report += line
        if b"print(" in line:  # the dump was made before the handler had continued after its print
            time.sleep(0.2)  # a signal that arrives during a dump causes no further dump
            worker.send_signal(signal.SIGUSR1)
    assert f"message {message_id} of queue orders, attempt 1".encode() in report
    assert b"in slow" in report
    go.touch()
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=90)
    assert worker.returncode == 0


def test_sigusr1_shows_what_blocks_the_loop(cli: Cli, go: Path) -> None:
    cli("put", "orders", "x")
    worker = cli.start("worker", "shop:blocking", "--queue", "orders")
    assert _line(worker) == "blocking"
    worker.send_signal(signal.SIGUSR1)
    assert worker.stderr is not None
    while b"in blocking" not in worker.stderr.readline():
        pass
    go.touch()
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=90)
    assert worker.returncode == 0


def test_dump_shows_where_each_handler_waits_and_leaves_the_worker_running(cli: Cli, go: Path) -> None:
    message_id = cli("put", "orders", '{"id": 1}').text.strip()
    worker = cli.start("worker", "shop:listener")
    assert _line(worker) == "started 1"
    done = cli("dump", str(worker.pid), "--timeout", "90")
    assert done.status == 0, done.stderr
    first = done.text.split("\ntask ")[1]
    assert f"message {message_id} of queue orders, attempt 1" in first
    assert "in slow" in first
    assert "in slow" in cli("dump", str(worker.pid), "--timeout", "90").text
    go.touch()
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=90)
    assert worker.returncode == 0


def test_dump_shows_what_blocks_the_loop(cli: Cli, go: Path) -> None:
    cli("put", "orders", "x")
    worker = cli.start("worker", "shop:blocking", "--queue", "orders")
    assert _line(worker) == "blocking"
    assert "in blocking" in cli("dump", str(worker.pid), "--timeout", "90").text
    go.touch()


def test_dump_of_a_worker_with_several_processes_names_them(cli: Cli, go: Path) -> None:
    go.touch()
    worker = cli.start("worker", "shop:listener", "--processes", "2")
    for _ in range(2):
        _wait_for_line(worker, "new session 0x")
    done = cli("dump", str(worker.pid))
    assert done.status == 1
    processes = [int(process) for process in re.findall(r"[0-9]+", done.stderr.partition("that it has started: ")[2])]
    assert len(processes) == 2, done.stderr
    for process in processes:
        assert "tasks" in cli("dump", str(process), "--timeout", "90").text
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=90)
    assert worker.returncode == 0


def test_dump_does_not_end_other_processes(cli: Cli) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        done = cli("dump", str(other.pid))
        assert (done.status, other.poll()) == (1, None)
        assert "(sleep) is not an `aiozkqueue worker`" in done.stderr
        other.kill()
    gone = cli("dump", str(other.pid))
    assert gone.status == 1
    assert "no process" in gone.stderr


def test_a_worker_restarts_when_its_code_changes(cli: Cli, tmp_path: Path) -> None:
    module = tmp_path / "shop.py"

    def write(version: str) -> None:
        # Renamed, because an incomplete file would be a change, too.
        made = tmp_path / "made"
        made.write_text(f"async def tell(delivery):\n    print({version!r}, delivery.body.decode(), flush=True)\n")
        made.rename(module)

    write("old")
    worker = cli.start_in(tmp_path, "worker", "shop:tell", "--queue", "words", "--reload")
    cli("put", "words", "one")
    assert _line(worker) == "old one"
    module.write_text("a mistake")
    deadline = time.monotonic() + 90
    assert worker.stderr is not None
    while b"SyntaxError" not in worker.stderr.readline():
        assert time.monotonic() < deadline
    write("new")
    cli("put", "words", "two")
    assert _line(worker) == "new two"
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=90)
    assert worker.returncode == 0


def test_a_module_in_the_current_folder_hides_installed_ones_but_not_the_standard_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", ["/usr/lib/python3.11", "/usr/lib/python3.11/site-packages"])
    _find_modules_of(tmp_path)
    assert sys.path == ["/usr/lib/python3.11", str(tmp_path), "/usr/lib/python3.11/site-packages"]
    _find_modules_of(tmp_path)
    assert len(sys.path) == 3
