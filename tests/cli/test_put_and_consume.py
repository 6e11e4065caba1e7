"""Messages come from arguments, files and stdin, and go to stdout and to commands."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import aiozkqueue as zq
from aiozkqueue.testing import ZooKeeperProxy
from tests.cli.conftest import NEW_PROCESS
from tests.complaints import complaints

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Cli


def _line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().rstrip("\n")


def _stats(cli: Cli) -> dict[str, Any]:
    [stats] = cli("stats", "q", "--json").records
    return stats


def test_an_argument_is_put_and_its_id_is_printed(cli: Cli) -> None:
    put = cli("put", "q", "hello")
    assert (put.status, put.stderr) == (0, "")
    [message] = cli("peek", "q", "--json").records
    assert put.text == f"{message['id']}\n"
    assert message["body"] == "hello"


def test_a_file_becomes_one_unchanged_message(cli: Cli, tmp_path: Path) -> None:
    payload = bytes(range(256)) * 10
    (tmp_path / "payload").write_bytes(payload)
    assert cli("put", "q", "--file", str(tmp_path / "payload")).status == 0
    assert cli("consume", "q").stdout == payload + b"\n"


def test_a_binary_payload_is_base64_in_json(cli: Cli) -> None:
    cli("put", "q", stdin=b"\xff\x00")
    [message] = cli("consume", "q", "--json").records
    assert message["body_base64"] == "/wA="
    assert "body" not in message


def test_each_line_of_stdin_becomes_a_message(cli: Cli) -> None:
    lines = [f"line {n}".encode() for n in range(1000)]
    put = cli("put", "q", "--lines", stdin=b"\n".join(lines))
    assert len(set(put.text.split())) == 1000
    assert cli("consume", "q").stdout.splitlines() == lines


def test_each_line_of_a_file_becomes_a_message(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("one\n\nthree\n")
    cli("put", "q", "--lines", "--file", str(tmp_path / "lines"))
    assert cli("consume", "q").text == "one\n\nthree\n"


def test_a_line_is_stored_while_the_source_is_still_open(cli: Cli) -> None:
    process = cli.start("put", "q", "--lines", "--json")
    assert process.stdin is not None
    process.stdin.write(b"first\nsecond, unfinished")
    process.stdin.flush()
    assert '"id"' in _line(process)
    assert [m["body"] for m in cli("peek", "q", "--json").records] == ["first"]


def test_a_body_and_a_file_together_are_refused(cli: Cli) -> None:
    put = cli("put", "q", "hello", "--lines")
    assert put.status == 2
    assert "--lines" in put.stderr


def test_a_message_that_is_too_large_is_refused_in_one_line(cli: Cli) -> None:
    put = cli("put", "q", stdin=b"x" * 2_000_000)
    assert put.status == 2
    assert len(put.stderr.splitlines()) == 1


def test_an_invalid_queue_name_is_refused_in_one_line(cli: Cli) -> None:
    put = cli("put", "a/b", "x")
    assert put.status == 2
    assert len(put.stderr.splitlines()) == 1
    assert "a/b" in put.stderr


def test_consuming_an_empty_queue_fails_with_1(cli: Cli) -> None:
    consume = cli("consume", "q")
    assert (consume.status, consume.text) == (1, "")


def test_the_limit_leaves_the_rest_unclaimed(cli: Cli) -> None:
    cli("put", "q", "--lines", stdin=b"1\n2\n3\n4\n")
    assert cli("consume", "q", "--limit", "2").text == "1\n2\n"
    stats = _stats(cli)
    assert (stats["size"], stats["in_flight"]) == (2, 0)


def test_a_follower_waits_for_more_messages_and_exits_cleanly_on_sigterm(cli: Cli) -> None:
    follower = cli.start("consume", "q", "--follow")
    for body in ("early", "late"):
        cli("put", "q", body)
        assert _line(follower) == body
    follower.send_signal(signal.SIGTERM)
    assert follower.wait(90) == 0
    stats = _stats(cli)
    assert (stats["size"], stats["in_flight"], stats["consumers"]) == (0, 0, 0)


def test_a_command_gets_the_payload_and_its_exit_status_decides_the_commit(cli: Cli) -> None:
    # Failed messages are redelivered long after the test.
    cli("configure", "q", "--create", "--policy", "at-least-once", "--backoff", "600")
    cli("put", "q", "--lines", stdin=b"good\nbad\n")
    script = 'read body; echo "$AIOZKQUEUE_ATTEMPT $body"; test "$body" = good'
    consume = cli("consume", "q", "--exec", script)
    assert consume.status == 1
    assert sorted(consume.text.splitlines()) == ["1 bad", "1 good"]
    assert "will be redelivered: the command exited with status 1" in consume.stderr
    assert [m["body"] for m in cli("peek", "q", "--json").records] == ["bad"]


def test_a_message_out_of_attempts_is_not_reported_as_redelivered(cli: Cli) -> None:
    cli("configure", "q", "--create", "--policy", "consume-times=2", "--backoff", "0")
    cli("put", "q", "bad")
    message_id = cli("peek", "q", "--json").records[0]["id"]
    consume = cli("consume", "q", "--follow", "--limit", "2", "--exec", "exit 3")
    assert consume.stderr.splitlines() == [
        f"aiozkqueue: {message_id} will be redelivered: the command exited with status 3",
        f"aiozkqueue: {message_id} has used up its attempts: the command exited with status 3",
    ]
    [letter] = cli("dlq", "list", "q", "--json").records
    assert letter["reason"] == (
        "delivered 2 of 2 times without success; last error: CommandFailedError: the command exited with status 3"
    )


def test_a_command_that_a_signal_ends_is_reported_with_the_signal(cli: Cli) -> None:
    message_id = cli("put", "q", "bad").text.strip()
    consume = cli("consume", "q", "--limit", "1", "--exec", "kill -9 $$")
    assert f"{message_id} will be redelivered: the command was ended by signal 9" in consume.stderr


def test_a_command_need_not_read_its_input(cli: Cli) -> None:
    cli("put", "q", stdin=b"x" * 500_000)
    assert cli("consume", "q", "--exec", "true").status == 0


def test_a_signal_lets_the_running_command_finish(cli: Cli, tmp_path: Path) -> None:
    cli("put", "q", "--lines", stdin=b"1\n2\n")
    script = f"echo begun; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    consumer = cli.start("consume", "q", "--follow", "--exec", script)
    assert _line(consumer) == "begun"
    consumer.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert consumer.poll() is None
    (tmp_path / "go").touch()
    assert consumer.wait(90) == 0
    stats = _stats(cli)
    assert (stats["size"], stats["in_flight"]) == (1, 0)


async def test_a_second_signal_while_the_command_closes_its_session_does_not_kill_it(cli: Cli, zookeeper: str) -> None:
    async with ZooKeeperProxy(zookeeper) as proxy:
        await asyncio.to_thread(cli, "put", "q", "1")
        consumer = await asyncio.to_thread(cli.start, "consume", "q", "--follow", "--hosts", proxy.hosts)
        assert await asyncio.to_thread(_line, consumer) == "1"
        while (await asyncio.to_thread(_stats, cli))["size"]:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.05)
        proxy.stall()
        consumer.send_signal(signal.SIGINT)
        await asyncio.sleep(0.5)  # until the command closes its session
        # Another signal, since a second SIGINT before the first is handled would merge with it.
        consumer.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(consumer.wait, 90) == 130
        proxy.heal()


def test_a_second_signal_ends_the_command_and_keeps_the_message(cli: Cli) -> None:
    cli("put", "q", "1")
    consumer = cli.start("consume", "q", "--follow", "--exec", "echo $$; sleep 1000")
    child = int(_line(consumer))
    consumer.send_signal(signal.SIGTERM)
    # Another signal, since a second SIGTERM before the first is handled would merge with it.
    consumer.send_signal(signal.SIGINT)
    assert consumer.wait(90) == 130
    assert not _alive(child)
    stats = _stats(cli)
    assert stats["size"] == 1


def test_a_closed_output_pipe_loses_no_message_and_shows_no_traceback(cli: Cli) -> None:
    cli("put", "q", "--lines", stdin=b"\n".join(b"x" * 10_000 for _ in range(100)))
    consumer = cli.start("consume", "q")
    assert _line(consumer) == "x" * 10_000
    assert consumer.stdout is not None
    assert consumer.stderr is not None
    consumer.stdout.close()
    assert consumer.wait(90) == 1
    assert complaints(consumer.stderr.read().decode()) == ""
    stats = _stats(cli)
    # Messages that fitted into the pipe were written, and so committed.
    assert stats["size"] > 80
    assert stats["in_flight"] == 0


async def test_the_command_follows_the_policy_of_the_queue(cli: Cli, zookeeper: str, queue_root: str) -> None:
    async with zq.connect(zookeeper, root=queue_root) as session:
        queue = session.queue("q", policy=zq.ConsumeOnce())
        await queue.put(b"once")
        consumer = await asyncio.to_thread(cli, "consume", "q", "--exec", "false")
        assert consumer.status == 1
        assert await queue.dead_letters.size() == 1


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_json_object_is_one_line_for_any_payload(cli: Cli) -> None:
    body = "a\u2028b\x85c\x7f\x9b2J\u202ed\U000e0001"
    cli("put", "q", body)
    for command in (("peek", "q", "--json"), ("consume", "q", "--json")):
        text = cli(*command).text
        assert len(text.splitlines()) == 1
        assert text.removesuffix("\n").isprintable()
        assert json.loads(text)["body"] == body


def test_a_command_does_not_see_the_credentials(cli: Cli) -> None:
    cli("put", "q", "x")
    done = cli(
        "consume",
        "q",
        "--exec",
        'test -z "$AIOZKQUEUE_AUTH" && test -n "$AIOZKQUEUE_ROOT"',
        AIOZKQUEUE_AUTH="digest:u:p",
    )
    assert done.status == 0, done.stderr


def test_an_empty_input_is_refused_and_an_empty_message_is_put_on_purpose(cli: Cli) -> None:
    refused = cli("put", "q")
    error = "aiozkqueue: stdin is empty, so no message is put; to put an empty one, give '' as the BODY\n"
    assert (refused.status, refused.stderr) == (2, error)
    assert cli("put", "q", "").status == 0
    assert [message["body"] for message in cli("peek", "q", "--json").records] == [""]


def test_a_put_from_the_terminal_says_so_and_stores_no_empty_message(cli: Cli) -> None:
    main, terminal = pty.openpty()
    command = [*NEW_PROCESS, "put", "q"]
    process = subprocess.Popen(
        command, env=os.environ | cli.environment, stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with process:
        assert process.stderr is not None
        assert b"reading from the terminal" in process.stderr.readline()
        os.write(main, b"\x04")
        assert process.wait(60) == 2
        assert b"nothing was typed" in process.stderr.read()
    os.close(terminal)
    os.close(main)
    assert cli("queues").status == 1
