"""Rate limits, and requests that a browser sends for another site."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.http import Settings
from aiozkqueue.http.core import keys
from aiozkqueue.http.core.gate import Buckets
from aiozkqueue.http.core.tokens import MessageIds
from aiozkqueue.session.internals import core_of
from tests.faults.account import multi_of

if TYPE_CHECKING:
    from aiozkqueue.testing import ZooKeeperProxy
    from tests.http.conftest import Service, Starter
    from tests.observer import Observer

pytestmark = pytest.mark.timeout(180)

ME = ("key", "me")


class TestBuckets:
    """The number of requests that a client may send."""

    def test_a_client_above_its_rate_is_slowed_down_and_not_locked_out(self) -> None:
        buckets = Buckets(5)
        allowed = [number / 10 for number in range(150) if not buckets.spend(ME, number / 10)]
        assert len(allowed) == pytest.approx(10 + 15 * 5, abs=2)
        assert [at for at in allowed if at > 10], "requests are accepted until the end"

    def test_a_limited_client_gets_the_time_until_its_next_request(self) -> None:
        buckets = Buckets(0.5)
        assert buckets.spend(ME, 0) == 0
        wait = buckets.spend(ME, 0)
        assert wait == pytest.approx(2)
        assert buckets.spend(ME, wait - 0.1) > 0
        assert buckets.spend(ME, wait) == 0

    def test_each_client_has_its_own_rate_limit(self) -> None:
        buckets = Buckets(1)
        assert [buckets.spend(ME, 0) > 0 for _ in range(4)] == [False, False, True, True]
        assert not buckets.spend(("peer", "me"), 0)


async def test_requests_with_unknown_keys_and_for_pages_are_limited_too(start: Starter) -> None:
    service = await start(Settings(rate=1))
    assert (await service.get("/queue/1/q/size")).status_code == 200
    unknown = [
        (await service.get("/queue/1/q/size", headers={"X-BV-API-Key": f"nobodys-{number}"})).status_code
        for number in range(12)
    ]
    assert unknown[0] == 403
    assert 429 in unknown
    assert (await service.get("/queue/1/q/size")).status_code == 200, "a key has its own rate"
    pages = await asyncio.gather(*[service.get("/", headers={"Cookie": "aiozkqueue-key=nobodys"}) for _ in range(8)])
    assert 429 in {page.status_code for page in pages}


async def test_zookeeper_is_not_asked_for_the_unknown_keys_of_a_client_above_its_rate(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = await start(Settings(rate=0.1))
    asked: list[str] = []
    caller = keys.Keys.caller

    async def counted(self: keys.Keys, text: str) -> keys.Caller | None:
        asked.append(text)
        return await caller(self, text)

    monkeypatch.setattr(keys.Keys, "caller", counted)
    for number in range(12):
        await service.get("/queue/1/q/size", headers={"X-BV-API-Key": f"nobodys-{number}"})
    assert len(asked) <= 4


async def test_unknown_keys_do_not_displace_the_keys_in_use(
    session: zq.QueueSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "REMEMBERED", 3)
    monkeypatch.setattr(keys, "FRESH", -1.0)  # each request reads its key again
    known = keys.Keys(core_of(session))
    key = await known.create("me", ["queue|*|*"])
    for number in range(4):
        assert await known.caller(key) is not None
        for other in range(2):
            assert await known.caller(f"nobodys-{number}-{other}") is None
        assert known.knows(key), "its requests have the rate of the key, and not of their address"


async def test_a_revoked_key_is_refused_within_five_seconds(
    session: zq.QueueSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(keys, "time", SimpleNamespace(monotonic=lambda: now))
    here, elsewhere = keys.Keys(core_of(session)), keys.Keys(core_of(session))
    key = await here.create("me", ["queue|*|*"])
    assert await here.caller(key) is not None
    assert await elsewhere.revoke("me") == 1
    now += 5.1
    assert await here.caller(key) is None


async def test_a_revocation_whose_reply_is_lost_counts_the_key(
    zookeeper_proxy: ZooKeeperProxy, queue_root: str, server_view: Observer
) -> None:
    async with zq.connect(zookeeper_proxy.hosts, root=queue_root, session_timeout=20) as session:
        known = keys.Keys(core_of(session))
        await known.create("me", ["queue|*|*"])
        fault = zookeeper_proxy.lose_after(multi_of(b"/.keys/"))
        assert await known.revoke("me") == 1
        assert len(fault.requests) == 1
        assert await server_view.children(f"{queue_root}/.keys") == []


async def test_a_key_that_cannot_be_removed_is_not_reported_as_unknown(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    known = keys.Keys(core_of(session))
    key = await known.create("me", ["queue|*|*"])
    [name] = await server_view.children(f"{queue_root}/.keys")
    await server_view.create(f"{queue_root}/.keys/{name}/of-another-program")
    with pytest.raises(zq.NotCommittedError, match=name):
        await known.revoke("me")
    assert await known.caller(key) is not None


@pytest.mark.parametrize("call", ["list the keys", "rotate the secret"])
async def test_calls_for_keys_and_secrets_end_while_no_server_answers(
    zookeeper_proxy: ZooKeeperProxy, queue_root: str, call: str
) -> None:
    hosts = zookeeper_proxy.hosts
    async with zq.connect(hosts, root=queue_root, session_timeout=20, operation_timeout=0.5) as session:
        known, secrets = keys.Keys(core_of(session)), MessageIds(core_of(session))
        await secrets.signer()
        zookeeper_proxy.refuse()
        zookeeper_proxy.reset_connections()
        with pytest.raises(zq.QueueError, match=r"no answer from ZooKeeper within 0\.5 s"):
            await (known.all() if call == "list the keys" else secrets.rotate())
        await zookeeper_proxy.listen()


async def test_a_key_whose_whole_hash_is_not_the_stored_one_is_refused(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    """The name of its znode has only a part of the hash."""
    known = keys.Keys(core_of(session))
    key = await known.create("me", ["queue|*|*"])
    [name] = await server_view.children(f"{queue_root}/.keys")
    stored = json.loads(await server_view.get(f"{queue_root}/.keys/{name}"))
    await server_view.set(f"{queue_root}/.keys/{name}", json.dumps({**stored, "hash": f"{name}{'0' * 32}"}).encode())
    assert await known.caller(key) is None


# -- requests without a key


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Referer": "http://evil.example/page"},
        {"Host": "evil.example"},
        {"Host": "evil.example:8080", "Origin": "http://evil.example:8080"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "[::1"},
    ],
)
async def test_a_page_of_another_site_can_do_nothing_on_a_server_without_keys(
    start: Starter, headers: dict[str, str]
) -> None:
    service = await start(Settings(anonymous=("queue|*|*",), hosts=()))
    key = service.http.headers.pop("X-BV-API-Key")
    await service.post("/queue/1/q/send", json=1)
    assert (await service.get("/queue/1/q/poll?ttl=3600", headers=headers)).status_code == 403
    assert (await service.post("/queue/1/q/unclaimall", headers=headers)).status_code == 403
    assert (await service.get("/queue/1/q/claimcount")).json() == 0
    assert (await service.get("/queue/1/q/size", headers={**headers, "X-BV-API-Key": key})).status_code == 200


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "10.0.0.7:8080", "[::1]:80", "localhost", "queues:8080", "a.b.internal", "Queues.Example"]
)
async def test_allowed_host_names_are_served(start: Starter, host: str) -> None:
    service = await start(Settings(anonymous=("queue|*|*",), hosts=("queues.example",)))
    service.http.headers.pop("X-BV-API-Key")
    assert (await service.get("/queue/1/q/size", headers={"Host": host})).status_code == 200
    same = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
    assert (await service.post("/queue/1/q/send", json=1, headers=same)).status_code == 200


async def test_a_setting_allows_any_host(start: Starter) -> None:
    service = await start(Settings(anonymous=("queue|*|*",), hosts=("*",)))
    service.http.headers.pop("X-BV-API-Key")
    assert (await service.get("/queue/1/q/size", headers={"Host": "any.example"})).status_code == 200


# -- forms of unknown visitors, and the log


async def test_a_large_form_is_refused_before_sign_in(service: Service) -> None:
    for path in ("/sign-in", "/sign-out"):
        answer = await service.post(path, content=b"key=" + b"%41" * 300_000)
        assert answer.status_code == 403
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    padded = await service.post("/sign-in", content=b"a&" * 2100 + b"key=" + service.key.encode(), headers=form)
    assert padded.status_code == 403
    right = await service.post("/sign-in", data={"key": service.key})
    assert right.status_code == 303


async def test_the_log_contains_no_terminal_control_characters(
    start: Starter, zookeeper_proxy: ZooKeeperProxy, caplog: pytest.LogCaptureFixture
) -> None:
    service = await start(Settings(request_timeout=0.5), hosts=zookeeper_proxy.hosts)
    assert (await service.get("/queue/1/q/size")).status_code == 200
    zookeeper_proxy.stall()
    answer = await service.get("/queue/1/a%1b%5b2J%c2%9b%e2%80%ae/size", headers={"X-BV-API-Key": "unknown"})
    assert answer.status_code == 503
    zookeeper_proxy.heal()
    logged = "".join(record.getMessage() for record in caplog.records)
    assert "/queue/1/a" in logged
    assert not set(logged) & {"\x1b", "\x9b", "\u202e"}


# -- the cookie


async def test_the_cookie_behind_an_https_proxy_is_for_this_host_and_https_only(service: Service) -> None:
    https = {"X-Forwarded-Proto": "https"}
    entered = await service.post("/sign-in", data={"key": service.key}, headers=https)
    sent = entered.headers["set-cookie"]
    assert sent.startswith("__Host-aiozkqueue-key=")
    assert "; Secure" in sent
    assert "Path=/;" in sent
    cookie = {**https, "Cookie": sent.partition(";")[0]}
    assert (await service.get("/", headers=cookie)).status_code == 200
    forged = {**https, "Cookie": f"aiozkqueue-key={service.key}"}  # as a page over plain HTTP could set it
    refused = await service.get("/", headers=forged)
    assert refused.status_code == 403
    assert "Sign in" in refused.text
