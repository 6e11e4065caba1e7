"""Every znode has the ACL of its session, and an unauthorized user cannot change anything."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.security import ACL, Id, Permissions
from pydantic import BaseModel

import aiozkqueue as zq
from aiozkqueue.batches.ledger import Ledger
from aiozkqueue.batches.staging import BatchWriter
from aiozkqueue.bus import Bus
from aiozkqueue.http import Keys
from aiozkqueue.http.core.tokens import MessageIds
from aiozkqueue.layout import key_hash
from aiozkqueue.operations.history_pins import pin
from aiozkqueue.schedule import Jobs, Notifications
from aiozkqueue.session.internals import core_of, handle_of
from aiozkqueue.testing import ZooKeeperProxy
from tests.security.conftest import IDENTITIES, Identity, session_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.listeners import Batch
    from aiozkqueue.testing import EmbeddedZooKeeper
    from tests.security.conftest import Superuser

SCHEMES = pytest.mark.parametrize("identity", list(IDENTITIES.values()), ids=list(IDENTITIES))
LATER = datetime(2999, 1, 1, tzinfo=UTC)
#: Folders in a queue, and folders next to the queues.
KINDS = {"items", "lanes", "locks", "due", "meta", "dlq", "consumers", "keys", "later", "history", "filters"} | {
    ".moves", ".schedule", ".notifications", ".buses", ".keys", ".clients",
}  # fmt: skip
REFUSED = "refused the credentials"
RETRIED = zq.ConsumeTimes(9, backoff=zq.Fixed(600))


async def use_everything(session: zq.QueueSession) -> None:
    """Use the features that create znodes, and leave a znode of each kind."""
    plain = session.queue("plain")
    await plain.put_many([b"%d" % number for number in range(6)], key="k", headers={"h": "1"})
    async with session.transaction() as tx:
        await tx.take(plain, timeout=30)
        tx.put("made-by-a-transaction", b"1")
    async with plain.consume(settle="explicit") as deliveries:
        delivery = await anext(deliveries)
        await delivery.reject("no use")
    counted = session.queue("counted", policy=RETRIED)
    await counted.put_many([b"1", b"2", b"3"])
    async with counted.consume(settle="explicit", prefetch=1) as deliveries:
        await (await anext(deliveries)).rollback()  # creates a timed lock, a due node and an attempt record
    await session.queue("wide").configure(zq.QueueConfig(shards=3))
    await session.queue("wide").put_many([b"%d" % number for number in range(9)])
    await plain.put(b"\xf5zq1 like an envelope")
    handled = asyncio.Event()

    async def handler(_: zq.Delivery[bytes]) -> None:
        handled.set()
        raise zq.Reject("rejected by the listener")

    async with session.listener(session.queue("wide"), handler):
        await asyncio.wait_for(handled.wait(), 60)
    assert await session.queue("wide").dead_letters.redrive(limit=1) == 1
    await use_every_feature(session)
    await session.admin.diagnose()


class Event(BaseModel):
    number: int


async def use_every_feature(session: zq.QueueSession) -> None:
    """Use the other options of a queue, and the features with znodes outside queues."""
    full = session.queue("full")
    await full.configure(zq.QueueConfig(history=zq.History(), max_size=9, affinity="any", clean_every=0.2))
    await full.put_many([b"1", b"2"], tags={"class": "low"}, ttl=600)
    await full.put(b"3", delay=600, priority=-3)
    await full.put(b"4", key="k", unique=True)
    async with session.transaction() as tx:
        await tx.take(full, timeout=30)  # the end of the message creates a history record
    await full.leases.take(lifetime=600)
    await session.queue("grouped").put(b"1", group="g")
    await session.queue("sticky").configure(zq.QueueConfig(affinity="producer"))
    await session.queue("sticky").put(b"1")
    await session.admin.moves.start("grouped", "moved")
    await Jobs(session).add("nightly", "0 3 * * *", "full", b"")
    await (await Notifications(session).create("s", "n", bytes)).schedule(b"1", LATER, search_key2="t")
    bus = Bus(session, "events", Event)
    await bus.join("audit")
    await bus.post(Event(number=1))
    await Keys(core_of(session)).create("client", ["queue|post|orders"])
    await MessageIds(core_of(session)).signer()
    await session.admin.clean()


@SCHEMES
async def test_every_znode_has_the_acl_of_the_session(
    secured: EmbeddedZooKeeper, superuser: Superuser, root: str, identity: Identity
) -> None:
    async with session_of(secured.hosts, root, identity.alice) as session:
        await use_everything(session)
        async with asyncio.timeout(30):
            while await superuser.stat(f"{root}/full/janitor") is None:  # noqa: ASYNC110 - made after `clean_every`
                await asyncio.sleep(0.02)
        async with session.transaction(autocommit=False) as tx:  # while locks and registrations exist
            assert await tx.take(session.queue("plain"), timeout=30)
            acls = await superuser.acls(root)
            await tx.rollback()
    kinds = {kind for kind in KINDS for path in acls if f"/{kind}/" in path}
    assert kinds == KINDS  # the test has created znodes of each kind
    assert f"{root}/full/janitor" in acls
    assert [path for path in acls if "/slot-" in path]
    granted = {(path, entry.id.scheme, entry.id.id) for path, entries in acls.items() for entry in entries}
    assert not [path for path, scheme, _ in granted if scheme in {"world", "auth", "ip"}]
    assert {who.partition(":")[0] for _, _, who in granted} == {"alice"}
    assert len(acls) > 60


@SCHEMES
async def test_an_unauthorized_user_is_denied_at_once_and_changes_nothing(
    secured: EmbeddedZooKeeper, superuser: Superuser, root: str, identity: Identity
) -> None:
    async with session_of(secured.hosts, root, identity.alice) as session:
        await fill(session.queue("jobs"))
    before = await superuser.data(root)
    async with session_of(secured.hosts, root, identity.mallory) as unauthorized:
        jobs: zq.Queue[bytes] = unauthorized.queue("jobs")
        for attempt in attempts_on(unauthorized, jobs):
            with pytest.raises(zq.AccessDeniedError, match="jobs"):
                await asyncio.wait_for(attempt(), 30)
    after = await superuser.data(root)
    assert after == before
    async with session_of(secured.hosts, root, identity.alice) as session:
        assert [m.body for m in await session.queue("jobs").peek()] == [b"2", b"3"]
        assert (
            len(await session.queue("jobs").admin.ledgers()) == len(await session.queue("jobs").admin.unfinished()) == 1
        )
        async with session.transaction() as tx:
            assert await tx.take(session.queue("jobs"), timeout=30)


@pytest.mark.parametrize("below", ["", "/inner"], ids=["the root", "a root below it"])
async def test_an_unauthorized_user_gets_no_key_and_no_secret_of_the_http_service(
    secured: EmbeddedZooKeeper, root: str, below: str
) -> None:
    identity = IDENTITIES["digest"]
    async with session_of(secured.hosts, root, identity.alice) as session:
        await session.queue("jobs").put(b"1")
    async with session_of(secured.hosts, f"{root}{below}", identity.mallory) as unauthorized:
        with pytest.raises(zq.AccessDeniedError, match=r"\.keys"):
            await asyncio.wait_for(Keys(core_of(unauthorized)).create("mallory", ["queue|*|*"]), 30)
        with pytest.raises(zq.AccessDeniedError, match=r"\.tokens"):
            await asyncio.wait_for(MessageIds(core_of(unauthorized)).rotate(), 30)


async def test_a_digest_password_is_changed_while_the_queue_is_in_use(secured: EmbeddedZooKeeper, root: str) -> None:
    """The steps of the security page; `set_all` does what ``setAcl -R <root> auth::cdrwa`` does in zkCli."""
    old, new = zq.Auth.digest("shop", "0ld"), zq.Auth.digest("shop", "n3w")
    async with session_of(secured.hosts, root, old) as session:
        await session.queue("jobs").put(b"1")
    async with session_of(secured.hosts, root, old, new) as session:
        await session.queue("jobs").put(b"2")
        await asyncio.to_thread(set_all, secured.hosts, root, old, new)
        await session.queue("jobs").put(b"3")
        async with session_of(secured.hosts, root, new) as restarted:
            await restarted.queue("jobs").put(b"4")
    await asyncio.to_thread(set_all, secured.hosts, root, new)
    async with session_of(secured.hosts, root, new) as session:
        async with session.transaction() as tx:
            messages = await tx.take_many(session.queue("jobs"), 4, timeout=30)
        assert sorted(message.body for message in messages) == [b"1", b"2", b"3", b"4"]
    async with session_of(secured.hosts, root, old) as session:
        with pytest.raises(zq.AccessDeniedError):
            await session.queue("jobs").size()


def set_all(hosts: str, path: str, *users: zq.Auth) -> None:
    """Give these users access to a znode and all below it, with a client that is authenticated as each of them."""
    client = KazooClient(hosts, auth_data=[("digest", f"{user.user}:{user.password}") for user in users])
    client.start(15)
    try:
        paths = [path]
        for each in paths:
            with suppress(NoNodeError):  # removed after its parent was listed
                paths += [f"{each}/{name}" for name in client.get_children(each) or ()]
                client.set_acls(each, [ACL(Permissions.ALL, Id("auth", ""))])
    finally:
        client.stop()
        client.close()


async def fill(jobs: zq.Queue[bytes]) -> None:
    """Fill a queue with a waiting message, a dead letter, and a message in the ledger of a stream."""
    await jobs.configure(zq.QueueConfig(history=zq.History()))
    await jobs.put_many([b"1", b"2", b"3"])
    async with jobs.consume(settle="explicit") as deliveries:
        await (await anext(deliveries)).reject("dead")
    assert await Ledger(handle_of(jobs), "stream").next_batch(-1, 1) == 0
    await BatchWriter(handle_of(jobs), "writer").begin(0, "first")
    await pin(handle_of(jobs), "audit", datetime.now(UTC))


def attempts_on(session: zq.QueueSession, jobs: zq.Queue[bytes]) -> list[Callable[[], Awaitable[Any]]]:
    """Return every operation on a queue that `fill` has filled."""

    async def take() -> None:
        async with session.transaction(autocommit=False) as tx:
            await tx.take(jobs, timeout=None)

    async def consume() -> None:
        async with jobs.consume() as deliveries:
            await anext(deliveries)

    async def listen() -> None:
        async def handler(_: zq.Delivery[bytes]) -> None: ...

        await session.listener(jobs, handler).run()

    async def transact() -> None:
        async with session.transaction() as tx:
            tx.put(jobs, b"4")

    async def read_history() -> None:
        async for _ in jobs.history():
            pass

    message_id = "abcdefghijkl000000"
    return [
        lambda: jobs.put(b"4"),
        lambda: jobs.put_many([b"4", b"5"]),
        transact,
        take,
        consume,
        listen,
        jobs.exists,
        jobs.size,
        jobs.claimed,
        jobs.peek,
        jobs.stats,
        jobs.admin.consumers,
        lambda: jobs.state(message_id),
        read_history,
        jobs.purge,
        lambda: jobs.cancel(id=message_id),
        lambda: jobs.cancel(key="k"),
        lambda: jobs.update(b"4", id=message_id),
        lambda: jobs.update(b"4", key="k"),
        jobs.admin.reap,
        jobs.admin.release_claims,
        jobs.admin.ledgers,
        lambda: jobs.admin.release_ledger("stream"),
        jobs.admin.unfinished,
        lambda: jobs.admin.discard_unfinished(key_hash("writer")),
        jobs.admin.pins,
        lambda: jobs.admin.unpin("audit"),
        jobs.leases.take,
        lambda: session.admin.clean(jobs.name),
        lambda: session.admin.moves.start(jobs, "elsewhere"),
        jobs.configuration,
        lambda: jobs.configure(zq.QueueConfig(shards=2)),
        jobs.dead_letters.size,
        jobs.dead_letters.peek,
        jobs.dead_letters.redrive,
        jobs.dead_letters.purge,
    ]


async def test_every_operation_after_a_reconnect_with_refused_credentials_is_denied(
    secured: EmbeddedZooKeeper, superuser: Superuser, root: str
) -> None:
    async with (
        ZooKeeperProxy(secured.hosts) as proxy,
        session_of(proxy.hosts, root, IDENTITIES["sasl"].alice) as session,
    ):
        jobs: zq.Queue[bytes] = session.queue("jobs")
        await fill(jobs)
        before = await superuser.data(root)
        core_of(session).zookeeper._session._auth = (zq.Auth.sasl("alice", "outdated"),)  # type: ignore[attr-defined]  # a private attribute
        proxy.reset_connections()
        with pytest.raises(zq.AccessDeniedError, match="refused the credentials"):
            await jobs.size()  # a write that was sent before the session noticed the loss would be in doubt
        for attempt in attempts_on(session, jobs):
            with pytest.raises(zq.AccessDeniedError, match="refused the credentials"):
                await asyncio.wait_for(attempt(), 30)
        assert await superuser.data(root) == before


async def test_whatever_waits_ends_when_all_servers_refuse_the_credentials(
    secured: EmbeddedZooKeeper, root: str
) -> None:
    """Otherwise a worker of an idle queue would run on, and never take a message again."""

    async def ignore(_: zq.Delivery[bytes]) -> None: ...

    async def ignore_all(_: Batch[bytes]) -> None: ...

    async def consume(queue: zq.Queue[bytes]) -> None:
        async with queue.consume() as deliveries:
            async for _ in deliveries:
                pass

    async def take(queue: zq.Queue[bytes]) -> None:
        async with session.transaction() as tx:
            await tx.take(queue, timeout=None)

    async with (
        ZooKeeperProxy(secured.hosts) as proxy,
        session_of(proxy.hosts, root, IDENTITIES["sasl"].alice) as session,
    ):
        empty, paused, full = (session.queue(name) for name in ("empty", "paused", "full"))
        await empty.configure(zq.QueueConfig(bundle=64))
        await paused.configure(zq.QueueConfig(bundle=1, paused=True))
        await full.configure(zq.QueueConfig(max_size=1))
        await full.put(b"1")
        waiting = [
            asyncio.create_task(waits, name=name)
            for name, waits in {
                "listener": session.listener(empty, ignore).run(),
                "listener of an absent queue": session.listener(session.queue("absent"), ignore).run(),
                "listener with a rate": session.listener(session.queue("slow"), ignore, rate=1).run(),
                "batches": session.listener(session.queue("many"), ignore_all, batch=9).run(),
                "paused listener": session.listener(paused, ignore).run(),
                "loop": consume(empty),
                "take": take(empty),
                "put": full.put(b"2", timeout=None),
            }.items()
        ]
        await asyncio.sleep(1)
        core_of(session).zookeeper._session._auth = (zq.Auth.sasl("alice", "outdated"),)  # type: ignore[attr-defined]  # a private attribute
        proxy.reset_connections()
        await asyncio.wait(waiting, timeout=30)
        still = [task for task in waiting if not task.done()]
        for task in still:
            task.cancel()
        ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert [task.get_name() for task in still] == []
    wrong = [error for error in ends if not (isinstance(error, zq.AccessDeniedError) and REFUSED in str(error))]
    assert wrong == []


@SCHEMES
async def test_an_access_error_without_a_queue_names_the_root(
    secured: EmbeddedZooKeeper, root: str, identity: Identity
) -> None:
    async with session_of(secured.hosts, root, identity.alice) as session:
        await session.queue("jobs").put(b"1")
    async with session_of(secured.hosts, root, identity.mallory) as unauthorized:
        with pytest.raises(zq.AccessDeniedError, match=root):
            await asyncio.wait_for(unauthorized.admin.diagnose(), 30)
        with pytest.raises(zq.AccessDeniedError, match="other"):
            await asyncio.wait_for(unauthorized.queue("other").put(b"1"), 30)


async def test_an_error_about_a_job_names_it_and_the_missing_right(zookeeper: str, queue_root: str) -> None:
    owner, schedule = zq.Auth.digest("owner", "secret"), f"{queue_root}/.schedule"
    readable = [zq.Acl.creator(), zq.Acl.read("world", "anyone")]
    async with zq.connect(zookeeper, root=queue_root) as session:
        await session.queue("q").put(b"1")  # creates the folder of the commit slots, open to all
        async with zq.connect(zookeeper, root=queue_root, auth=[owner], acl=readable) as owning:
            await Jobs(owning).add("nightly", "0 3 * * *", "q", b"")
        jobs = Jobs(session)
        for attempt, right in (
            (jobs.add("hourly", "0 * * * *", "q", b""), f"'hourly': .* no right to create children of {schedule};"),
            (jobs.remove("nightly"), f"'nightly': .* no right to delete children of {schedule};"),
            (jobs.pause("nightly"), f"'nightly': .* no right to write {schedule}/nightly;"),
        ):
            with pytest.raises(zq.AccessDeniedError, match=f"^job {right} use the credentials of"):
                await attempt


@pytest.mark.parametrize("readable", [False, True])
async def test_an_error_about_a_job_names_it_if_the_user_may_write_nothing(
    zookeeper: str, queue_root: str, *, readable: bool
) -> None:
    owner = zq.Auth.digest("owner", "secret")
    acl = [zq.Acl.creator(), *([zq.Acl.read("world", "anyone")] if readable else [])]
    async with zq.connect(zookeeper, root=queue_root, auth=[owner], acl=acl) as owning:
        await Jobs(owning).add("nightly", "0 3 * * *", "q", b"")
    async with zq.connect(zookeeper, root=queue_root) as session:
        jobs, denied = Jobs(session), f"an ACL gives this user no right to write below {queue_root}/.clients"
        with pytest.raises(zq.AccessDeniedError, match=f"^job 'hourly': {denied}"):
            await jobs.add("hourly", "0 * * * *", "q", b"")
        with pytest.raises(zq.AccessDeniedError, match=f"^job 'nightly': {denied}"):
            await jobs.remove("nightly")
        if readable:
            await jobs.list()
        else:
            with pytest.raises(zq.AccessDeniedError, match=f"^recurring jobs: .* no right to read {queue_root}/.sched"):
                await jobs.list()


async def test_users_that_one_acl_names_can_work_together(
    secured: EmbeddedZooKeeper, superuser: Superuser, root: str
) -> None:
    alice, mallory = IDENTITIES["digest"].alice, IDENTITIES["digest"].mallory
    acl = [zq.Acl.digest(alice.user, alice.password), zq.Acl.digest(mallory.user, mallory.password)]
    async with (
        zq.connect(secured.hosts, root=root, auth=[alice], acl=acl) as producer,
        zq.connect(secured.hosts, root=root, auth=[mallory], acl=acl) as consumer,
    ):
        await producer.queue("shared").put(b"1")
        async with consumer.transaction() as tx:
            message = await tx.take(consumer.queue("shared"), timeout=30)
            assert message is not None
        for path, entries in (await superuser.acls(root)).items():
            assert {entry.id.id.partition(":")[0] for entry in entries} == {"alice", "mallory"}, path


@pytest.mark.parametrize("variable", ["AIOZKQUEUE_AUTH", "AIOZKQUEUE_AUTH_FILE"])
async def test_a_session_without_credentials_warns_if_the_environment_has_some(
    zookeeper: str, queue_root: str, variable: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def warnings(**options: Any) -> list[str]:  # Any: keyword arguments of connect
        caplog.clear()
        async with zq.connect(zookeeper, root=queue_root, **options):
            return [record.message for record in caplog.records if "everyone may change" in record.message]

    assert await warnings() == []
    monkeypatch.setenv(variable, "digest:shop:secret")
    [warning] = await warnings()
    assert variable in warning
    assert "secret" not in warning
    assert await warnings(acl=[zq.Acl.all("world", "anyone")]) == []
    assert await warnings(auth=[zq.Auth.digest("shop", "secret")]) == []
