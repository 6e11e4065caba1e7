"""`aiozkqueue doctor`: the findings on a server with faults, and the exit status."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing.ports import free_ports
from aiozkqueue.zookeeper import Silence, handshake
from aiozkqueue.zookeeper.hosts import Server
from tests.full_server import full_server
from tests.integration.zookeeper.scripted_server import Peer, ScriptedServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.cli.conftest import Cli, Done
    from tests.observer import Observer


def of_kind(done: Done, kind: str) -> list[dict[str, Any]]:
    return [record for record in done.records if record["kind"] == kind]


def found(done: Done, severity: str) -> list[str]:
    return [f"{f['subject']}: {f['text']}" for f in of_kind(done, "finding") if f["severity"] == severity]


def test_doctor_reports_a_queue_in_figures(cli: Cli) -> None:
    cli("put", "q", "--lines", stdin=b"1\n2\n3\n")
    done = cli("doctor", "--json")
    assert done.status == 0, done.stderr
    [server] = of_kind(done, "server")
    assert server["reachable"]
    assert server["version"].startswith("3.")
    assert server["mode"] in {"standalone", "leader", "follower"}
    [session] = of_kind(done, "session")
    assert session["session_timeout"] == 10
    assert session["request_limit"] == 1024 * 1024 - 1
    assert 0 < session["read_p50"] <= session["read_max"] < 60
    assert 0 < session["write_p50"] <= session["write_max"] < 60
    assert abs(session["clock_offset"]) < 60
    [queue] = of_kind(done, "queue")
    assert (queue["queue"], queue["size"], queue["consumers"], queue["dead_letters"]) == ("q", 3, 0, 0)
    [items] = [facts for path, facts in queue["folders"].items() if path.endswith("/q/items")]
    assert (items["children"], items["counter"]) == (3, 3)
    assert items["listing"] > 3 * 20
    assert found(done, "error") == []
    warnings = found(done, "warning")
    assert [text for text in warnings if text.startswith("q:")] == ["q: 3 messages and no consumer"]
    # Other findings may concern a standalone server, or slow responses on a busy machine.
    assert {text.partition(":")[0] for text in warnings} <= {
        "q",
        "servers",
        "clock",
        server["address"].partition(":")[0],
    }


def test_doctor_prints_tables_and_a_verdict(cli: Cli) -> None:
    cli("put", "q", "1")
    done = cli("doctor", "q")
    assert done.status == 0, done.stderr
    assert all(word in done.text for word in ("version", "write p50", "clock offset", "longest listing"))
    assert "healthy" not in done.text  # because there are warnings
    assert re.search(r"works, with \d+ warnings?", done.text)


def test_doctor_reports_a_pause_and_not_a_missing_consumer(cli: Cli) -> None:
    cli("put", "q", "1")
    cli("pause", "q")
    done = cli("doctor", "--json")
    assert [text for text in found(done, "warning") if text.startswith("q:")] == ["q: is paused, and 1 message waits"]
    assert "q (paused)" in cli("doctor").text


async def test_messages_that_can_only_be_taken_later_need_no_consumer_yet(
    cli: Cli, zookeeper: str, queue_root: str
) -> None:
    async with zq.connect(zookeeper, root=queue_root) as session:
        await session.queue("reminders").put(b"1", delay=86_400)
        await session.queue("mixed").put_many([b"1", b"2"], delay=86_400)
        await session.queue("mixed").put(b"3")
        await session.queue("leased").put(b"1")
        leases = await session.queue("leased").leases.take(1, lifetime=3600, timeout=30)
        assert len(leases) == 1
    warnings = found(await asyncio.to_thread(cli, "doctor", "--json"), "warning")
    assert [text for text in warnings if "consumer" in text] == ["mixed: 1 message and no consumer"]
    for queue in ("reminders", "mixed"):
        assert (await asyncio.to_thread(cli, "pause", queue)).status == 0
    done = await asyncio.to_thread(cli, "doctor", "--json")
    assert [text for text in found(done, "warning") if "paused" in text] == ["mixed: is paused, and 1 message waits"]
    assert "reminders: is paused, and 0 messages wait" in found(done, "info")


def test_doctor_reports_a_standalone_server_and_its_size(cli: Cli) -> None:
    done = cli("doctor", "--json")
    [server] = of_kind(done, "server")
    assert any("standalone server" in text for text in found(done, "warning")) == (server["mode"] == "standalone")
    assert server["files"] > 0
    assert not any("autopurge" in text for text in found(done, "warning"))


async def test_doctor_finds_jobs_that_no_scheduler_serves(cli: Cli, server_view: Observer, queue_root: str) -> None:
    for name in ("report", "idle"):
        added = await asyncio.to_thread(cli, "jobs", "add", name, "* * * * *", "q", "body")
        assert added.status == 0, added.stderr
    await asyncio.to_thread(cli, "jobs", "pause", "idle")
    assert (await asyncio.to_thread(cli, "jobs", "list")).stderr == ""
    assert not any("jobs:" in text for text in found(await asyncio.to_thread(cli, "doctor", "--json"), "warning"))
    for name in ("report", "idle"):
        path = f"{queue_root}/.schedule/{name}"
        job = json.loads(await server_view.get(path))
        await server_view.set(path, json.dumps({**job, "last": job["last"] - 600_000}).encode())
    warnings = found(await asyncio.to_thread(cli, "doctor", "--json"), "warning")
    finding = "1 job overdue: report. No scheduler seems to run, or its puts are refused"
    assert f"jobs: {finding}" in warnings
    listed = await asyncio.to_thread(cli, "jobs", "list")
    assert listed.stderr.startswith(f"aiozkqueue: {finding}: run `aiozkqueue jobs run`, or a Scheduler in a worker; ")
    assert "a full queue or a held unique key" in listed.stderr
    records = (await asyncio.to_thread(cli, "jobs", "list", "--json")).records
    assert {record["name"]: record["overdue"] for record in records} == {"report": True, "idle": False}


async def test_doctor_leaves_nothing_behind(cli: Cli, server_view: Observer, queue_root: str) -> None:
    await asyncio.to_thread(cli, "put", "q", "1")
    before = await server_view.tree(queue_root)
    assert (await asyncio.to_thread(cli, "doctor")).status == 0
    assert await server_view.tree(queue_root) == before


def test_doctor_reports_a_missing_queue_as_an_error(cli: Cli) -> None:
    done = cli("doctor", "q", "--json")
    assert done.status == 1
    assert found(done, "error") == ["q: there is no such queue"]


def test_doctor_exits_like_other_commands_without_a_server_or_with_a_bad_name(cli: Cli) -> None:
    assert cli("doctor", AIOZKQUEUE_HOSTS="127.0.0.1:1", AIOZKQUEUE_CONNECT_TIMEOUT="0.5").status == 3
    assert cli("doctor", ".hidden").status == 2


async def test_doctor_finds_leftover_znodes_and_ignores_those_in_use(
    cli: Cli, server_view: Observer, queue_root: str, session_on: zq.QueueSession
) -> None:
    queue = session_on.queue("q", policy=zq.ConsumeTimes(5, backoff=zq.Fixed(600)))
    await queue.put_many([b"1", b"2", b"3", b"4", b"5"])
    async with session_on.transaction(autocommit=False) as tx:
        await tx.take(queue)  # a lock in use
        async with queue.consume(until_idle=0, settle="explicit", prefetch=1) as deliveries:
            delivery = await anext(deliveries)
            await delivery.rollback()  # a delay in use
        sound = await asyncio.to_thread(cli, "doctor", "q", "--json")
        assert sound.status == 0, sound.text
        assert found(sound, "error") == []
        assert not [text for text in found(sound, "warning") if "gone" in text]
        base = f"{queue_root}/q"
        [due] = await server_view.children(f"{base}/due")
        await server_view.delete(f"{base}/due/{due}")
        ids = [message.id for message in await queue.peek(5)]
        await server_view.create(f"{base}/locks/lock-{ids[-1]}", b"of another program")
        await server_view.create(f"{base}/due/1893456000000-nobody", b"items/x")
        await server_view.create(f"{base}/meta/meta-nobody", b"{}")
        await server_view.create(f"{base}/items/readme", b"")
        await server_view.create(f"{queue_root}/ill/items", b"")
        await server_view.set(f"{queue_root}/ill", b"{")
        done = await asyncio.to_thread(cli, "doctor", "--json")
        await tx.rollback()
    assert done.status == 1
    assert [text.split(":")[:2] for text in found(done, "error") if text.startswith("q")] == [
        ["q", " 1 lock that neither the end of a session nor a due time removes"],
        ["q", " 1 delayed message that nothing will release"],
    ]
    assert [text for text in found(done, "error") if text.startswith("ill: queue 'ill': the configuration")]
    warnings = " ".join(found(done, "warning"))
    for left in ("readme", "1893456000000-nobody", "meta-nobody"):
        assert left in warnings
    assert await queue.admin.release_claims() == 3  # the message that the transaction held now has a backoff, too
    assert await asyncio.to_thread(lambda: found(cli("doctor", "q", "--json"), "error")) == []


@pytest.fixture
async def session_on(zookeeper: str, queue_root: str) -> AsyncIterator[zq.QueueSession]:
    async with zq.connect(zookeeper, root=queue_root, session_timeout=20) as session:
        yield session


async def test_doctor_with_credentials_reports_znodes_open_to_all_as_an_error(
    cli: Cli, zookeeper: str, server_view: Observer, queue_root: str
) -> None:
    auth: dict[str, Any] = {"AIOZKQUEUE_AUTH": "digest:carol:s3cret-of-carol"}
    async with zq.connect(zookeeper, root=queue_root, auth=[zq.Auth.digest("carol", "s3cret-of-carol")]) as session:
        await session.queue("q").put(b"1")
    done = await asyncio.to_thread(lambda: cli("doctor", "--json", **auth))
    assert done.status == 0, done.text
    assert not [text for text in found(done, "error") + found(done, "warning") if "everyone" in text]
    await server_view.create(f"{queue_root}-open/q/items/item-0000000000", b"1")
    done = await asyncio.to_thread(lambda: cli("doctor", "--json", AIOZKQUEUE_ROOT=f"{queue_root}-open", **auth))
    assert done.status == 1
    opened = [text for text in found(done, "error") if "everyone may change" in text]
    assert [text.partition(":")[0] for text in opened] == ["root", "q"]
    assert f"{queue_root}-open/q" in opened[1]
    await server_view.authenticate("carol", "s3cret-of-carol")
    await server_view.delete(f"{queue_root}-open")
    denied = await asyncio.to_thread(lambda: cli("doctor", AIOZKQUEUE_AUTH="digest:mallory:wr0ng"))
    assert denied.status == 4
    assert "s3cret" not in json.dumps([done.text, done.stderr, denied.stderr])
    assert "wr0ng" not in denied.stderr + denied.text
    await server_view.delete(queue_root)


async def test_a_queue_of_another_user_does_not_hide_the_others(
    cli: Cli, zookeeper: str, server_view: Observer, queue_root: str
) -> None:
    assert (await asyncio.to_thread(cli, "put", "open", "1")).status == 0
    carol = zq.Auth.digest("carol", "s3cret-of-carol")
    async with zq.connect(zookeeper, root=queue_root, auth=[carol]) as session:
        await session.queue("private").put(b"1")
    assert (await asyncio.to_thread(cli, "queues")).text == "open\nprivate\n"
    stats = await asyncio.to_thread(cli, "stats", "--json")
    assert (stats.status, [record["queue"] for record in stats.records]) == (4, ["open"])
    assert "queue 'private'" in stats.stderr
    done = await asyncio.to_thread(cli, "doctor", "--json")
    assert [record["queue"] for record in of_kind(done, "queue")] == ["open", "private"]
    errors = found(done, "error")
    assert (done.status, [text.partition(":")[0] for text in errors]) == (1, ["private"])
    assert "this user may not read it" in errors[0]
    (advice,) = [finding["advice"] for finding in of_kind(done, "finding") if finding["severity"] == "error"]
    assert advice == "run doctor with the credentials of a user whom the ACL allows (AIOZKQUEUE_AUTH)"
    cleaned = await asyncio.to_thread(cli, "clean")
    assert (cleaned.status, cleaned.stderr.startswith("aiozkqueue: queue 'private': ")) == (4, True)
    assert await server_view.exists(f"{queue_root}/.janitor"), "the others and the root are cleaned"
    await server_view.authenticate("carol", "s3cret-of-carol")
    await server_view.delete(f"{queue_root}/private")


async def test_jobs_and_moves_of_another_user_do_not_hide_the_findings(
    cli: Cli, zookeeper: str, server_view: Observer, queue_root: str
) -> None:
    assert (await asyncio.to_thread(cli, "put", "open", "1")).status == 0
    carol = zq.Auth.digest("carol", "s3cret-of-carol")
    async with zq.connect(zookeeper, root=queue_root, auth=[carol]) as session:
        zookeeper_client = core_of(session).zookeeper
        for folder in (".schedule", ".moves"):
            await zookeeper_client.ensure(f"{queue_root}/{folder}")
    done = await asyncio.to_thread(cli, "doctor", "--json")
    assert done.status == 0, done.stderr
    warnings = found(done, "warning")
    assert "open: 1 message and no consumer" in warnings
    assert {"jobs", "moves"} <= {text.partition(":")[0] for text in warnings}
    await server_view.authenticate("carol", "s3cret-of-carol")
    for folder in (".schedule", ".moves"):
        await server_view.delete(f"{queue_root}/{folder}")


def test_an_unreachable_server_is_a_warning_while_another_serves(cli: Cli) -> None:
    hosts = f"{cli.environment['AIOZKQUEUE_HOSTS']},127.0.0.1:1"
    done = cli("doctor", "--json", AIOZKQUEUE_HOSTS=hosts)
    assert done.status == 0, done.text
    known, unreachable = of_kind(done, "server")
    assert known["version"]
    assert unreachable == {
        "kind": "server",
        "address": "127.0.0.1:1",
        "reachable": False,
        "version": None,
        "mode": None,
        "files": None,
    }
    assert "127.0.0.1:1: cannot be reached" in found(done, "warning")


@pytest.mark.parametrize(
    "answer",
    [
        b"This ZooKeeper instance is not currently serving requests\n",
        b"Zookeeper version: 3.9.5-1\nREAD-ONLY mode; serving only read-only clients\nMode: read-only\n",
    ],
)
async def test_a_server_without_a_quorum_is_a_warning_while_others_serve(cli: Cli, answer: bytes) -> None:
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.read(4) in {b"srvr", b"conf"}:
            writer.write(answer)
        writer.close()

    async with await asyncio.start_server(reply, "127.0.0.1", 0) as alone:
        address = f"127.0.0.1:{alone.sockets[0].getsockname()[1]}"
        hosts = f"{cli.environment['AIOZKQUEUE_HOSTS']},{address}"
        done = await asyncio.to_thread(lambda: cli("doctor", "--json", AIOZKQUEUE_HOSTS=hosts))
    assert done.status == 0, done.text
    (warning,) = [text for text in found(done, "warning") if text.startswith(address)]
    assert "serves no client" in warning
    assert not [text for text in found(done, "info") if text.startswith(address)]


async def test_each_server_is_examined_if_none_accepts_a_session(cli: Cli) -> None:
    """The leader is frozen, another server has lost its quorum, and the third one has been stopped."""
    ends = asyncio.Event()

    async def freeze(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ends.wait()
        writer.close()

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.read(4) in {b"srvr", b"conf"}:
            writer.write(b"This ZooKeeper instance is not currently serving requests\n")
        writer.close()

    async with (
        await asyncio.start_server(freeze, "127.0.0.1", 0) as frozen,
        await asyncio.start_server(reply, "127.0.0.1", 0) as alone,
    ):
        ports = [*(server.sockets[0].getsockname()[1] for server in (frozen, alone)), *free_ports(1)]
        addresses = [f"127.0.0.1:{port}" for port in ports]
        variables: dict[str, Any] = {"AIOZKQUEUE_HOSTS": ",".join(addresses), "AIOZKQUEUE_CONNECT_TIMEOUT": "1"}
        as_json = await asyncio.to_thread(lambda: cli("doctor", "--json", **variables))
        as_table = await asyncio.to_thread(lambda: cli("doctor", COLUMNS="400", **variables))
        ends.set()
    assert as_json.status == as_table.status == 3
    assert "no ZooKeeper server" in as_json.stderr
    assert [server["address"] for server in of_kind(as_json, "server")] == addresses
    texts = {finding["subject"]: finding["text"] for finding in of_kind(as_json, "finding")}
    assert texts[addresses[0]] == "accepts connections, but does not answer within 2 s"
    assert texts[addresses[1]].startswith("runs, but serves no client")
    assert texts[addresses[2]] == "cannot be reached"
    assert all(text in as_table.text for text in texts.values())


async def test_a_frozen_server_is_not_taken_for_one_at_its_limit_of_connections(cli: Cli) -> None:
    ends = asyncio.Event()

    async def freeze(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ends.wait()
        writer.close()

    async with await asyncio.start_server(freeze, "127.0.0.1", 0) as frozen:
        address = f"127.0.0.1:{frozen.sockets[0].getsockname()[1]}"
        hosts = f"{cli.environment['AIOZKQUEUE_HOSTS']},{address}"
        done = await asyncio.to_thread(lambda: cli("doctor", "--json", AIOZKQUEUE_HOSTS=hosts))
        ends.set()
    assert done.status == 0, done.text
    [finding] = [finding for finding in of_kind(done, "finding") if finding["subject"] == address]
    assert (finding["severity"], finding["text"]) == ("warning", "accepts connections, but does not answer within 2 s")
    assert "maxClientCnxns" not in finding["advice"]
    assert "frozen" in finding["advice"]
    assert {server["address"]: server["reachable"] for server in of_kind(done, "server")}[address]


async def test_a_server_at_its_limit_of_connections_is_not_taken_for_one_that_does_not_allow_srvr(cli: Cli) -> None:
    async with full_server() as full:
        done = await asyncio.to_thread(lambda: cli("doctor", "--json", AIOZKQUEUE_HOSTS=full))
    [finding] = [finding for finding in of_kind(done, "finding") if finding["subject"] == full]
    assert finding["severity"] == "warning"
    assert "closes them without an answer" in finding["text"]
    assert finding["advice"].startswith("raise its maxClientCnxns")


async def test_a_server_that_does_not_allow_srvr_is_reported_with_the_setting(cli: Cli) -> None:
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        word = (await reader.read(4)).decode("latin-1")
        writer.write(f"{word} is not executed because it is not in the whitelist.\n".encode())  # ZooKeeper's text
        writer.close()

    async with await asyncio.start_server(reply, "127.0.0.1", 0) as strict:
        address = f"127.0.0.1:{strict.sockets[0].getsockname()[1]}"
        hosts = f"{cli.environment['AIOZKQUEUE_HOSTS']},{address}"
        done = await asyncio.to_thread(lambda: cli("doctor", "--json", AIOZKQUEUE_HOSTS=hosts))
    [finding] = [finding for finding in of_kind(done, "finding") if finding["subject"] == address]
    assert (finding["severity"], finding["text"]) == ("info", "does not report its version")
    assert "4lw.commands.whitelist" in finding["advice"]


async def test_a_server_that_hides_its_version_still_counts_as_reached() -> None:
    async def silent(peer: Peer) -> None:
        await peer.keep_alive()

    # Sends an empty answer to `srvr`, as a server at its connection limit does.
    async with ScriptedServer(silent) as server:
        host, _, port = server.hosts.rpartition(":")
        assert await handshake.ask(Server(host, int(port)), "srvr", None) is Silence.CLOSED
