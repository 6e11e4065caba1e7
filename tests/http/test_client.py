"""The Python client: each method, its errors, its timeouts, and how it finds the servers."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import aiozkqueue as zq
from aiozkqueue.http import Keys, Settings, client
from aiozkqueue.http.client import (
    FixedHosts,
    IllegalArgumentError,
    QueueServiceClient,
    RegisteredHosts,
    ServiceError,
    ServiceMessage,
    ServiceMove,
    ServiceUnavailableError,
    UnauthorizedError,
    UnknownMoveReferenceError,
)
from aiozkqueue.http.core.names import Kind
from aiozkqueue.http.discovery import Registration, registered, service_urls
from aiozkqueue.session.internals import core_of
from aiozkqueue.zookeeper import Create
from tests.http.conftest import serving
from tests.integration.queue.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiozkqueue.testing import ZooKeeperProxy
    from tests.http.conftest import Service
    from tests.integration.queue.conftest import Opener
    from tests.observer import Observer

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
async def queues(service: Service) -> AsyncIterator[QueueServiceClient]:
    async with QueueServiceClient(service.url, key=service.key) as client:
        yield client


async def test_messages_are_sent_polled_and_acknowledged(queues: QueueServiceClient) -> None:
    await queues.send("q", {"order": 1})
    await queues.send_all("q", [2, None])
    await queues.send_all({"q": ["four"], "other": [5]})
    polled = await queues.poll("q", claim_ttl=60, limit=100)
    assert [message.payload for message in polled] == [{"order": 1}, 2, None, "four"]
    await queues.acknowledge("q", [message.id for message in polled])
    assert await queues.get_message_count("q") == 0
    assert [message.payload for message in await queues.peek("other", limit=1)] == [5]


async def test_claims_are_renewed_released_and_counted(queues: QueueServiceClient) -> None:
    await queues.send_all("q", [1, 2])
    first, second = await queues.poll("q", claim_ttl=60)
    await queues.renew("q", [first.id], claim_ttl=0)
    assert await queues.get_claim_count("q") == 1
    await queues.renew("q", [second.id], claim_ttl=3600)
    assert await queues.poll("q", wait=5) == [first]
    await queues.unclaim_all("q")
    assert await queues.get_claim_count("q") == 0
    assert await queues.get_message_count_up_to("q", 1) == 2
    await queues.purge("q")
    assert await queues.get_message_count("q") == 0


async def test_a_poll_waits_for_a_message(queues: QueueServiceClient) -> None:
    polling = asyncio.create_task(queues.poll("q", wait=60))
    await asyncio.sleep(0.2)
    await queues.send("q", 1)
    assert [message.payload for message in await polling] == [1]


async def test_a_queue_is_moved(queues: QueueServiceClient) -> None:
    await queues.send("from", 1)
    reference = await queues.move_async("from", "to")
    async with asyncio.timeout(60):
        while (status := await queues.get_move_status(reference)).status == "IN_PROGRESS":  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.05)
    assert status == ServiceMove("from", "to", "COMPLETE")
    assert await queues.get_message_count("to") == 1


async def test_equal_messages_collapse_for_a_dedup_client(service: Service) -> None:
    async with QueueServiceClient(service.url, key=service.key, dedup=True) as queues:
        await queues.send_all("q", ["m", "m"])
        assert [message.payload for message in await queues.poll("q")] == ["m"]


async def test_each_refusal_raises_its_own_type(service: Service, queues: QueueServiceClient) -> None:
    for illegal in (queues.poll("q", limit=0), queues.send("UPPER", 1), queues.send("q", "x" * 31_000)):
        with pytest.raises(IllegalArgumentError) as refused:
            await illegal
        assert refused.value.status == 400
        assert isinstance(refused.value, ValueError)
    with pytest.raises(IllegalArgumentError, match="cannot move queue to itself"):
        await queues.move_async("q", "q")
    with pytest.raises(UnknownMoveReferenceError) as unknown:
        await queues.get_move_status("nonsense")
    assert isinstance(unknown.value, LookupError)
    async with QueueServiceClient(service.url, key="nobodys") as unauthorized:
        for call in (unauthorized.send("q", 1), unauthorized.send_all({"q": [1]})):
            with pytest.raises(UnauthorizedError) as refused_key:
                await call
            assert refused_key.value.status == 403
            assert "nobodys" not in str(refused_key.value)
            assert isinstance(refused_key.value, zq.QueueError)


async def test_a_queue_name_with_url_characters_is_quoted(queues: QueueServiceClient) -> None:
    for name in ("..", "a/../b", "a/b", "q?ttl=1", "q#", "a b"):
        with pytest.raises(IllegalArgumentError, match="Queue name must be a lowercase ASCII string"):
            await queues.get_message_count(name)
    with pytest.raises(IllegalArgumentError, match=r"^POST /queue/1/a%2Fb/send: 400 "):
        await queues.send("a/b", 1)


@pytest.mark.parametrize(
    "address",
    [
        *("", "host", "host:8080", "ftp://host", "http://", "http://host:port", "http://:80"),
        *(
            "http://host?x=1",
            "http://host/#x",
            "http://a host",
            "http://host\n",
            5,
            None,
            ["http://host"],
            b"http://host",
        ),
        *("http://ä..b", "http://xn--", "http://[v1.x]:80", f"http://host/{'a' * 70_000}"),
    ],
)
def test_an_invalid_server_address_is_refused_at_once(address: Any) -> None:
    with pytest.raises(zq.InvalidOptionError, match="http://host:8080"):
        FixedHosts("http://one", address)
    with pytest.raises(zq.InvalidOptionError, match=r"http://host:8080|FixedHosts\(\.\.\.\)"):
        QueueServiceClient(address)


@pytest.mark.parametrize("address", ["http://host/queue/1", "http://host:80/emo/dedupq/1/"])
def test_an_address_with_the_path_of_a_service_is_refused_at_once(address: str) -> None:
    with pytest.raises(zq.InvalidOptionError, match="leave the path of the service out of 'http://host"):
        QueueServiceClient(address)


async def test_a_client_at_another_path_than_that_of_the_service_learns_which_address_to_give(service: Service) -> None:
    async with QueueServiceClient(f"{service.url}/emo", key=service.key) as queues:
        with pytest.raises(ServiceError, match=r"404 .*Give the address before /queue/1, such as 'http://host:8080'"):
            await queues.send("q", 1)


@pytest.mark.parametrize("key", [5, b"key", "\u00e9", "a\nb", ["key"], "", " ", "key ", "a key"])
def test_an_invalid_key_is_refused_at_once(key: Any) -> None:
    with pytest.raises(zq.InvalidOptionError, match="invalid API key"):
        QueueServiceClient("http://one", key=key)


@pytest.mark.parametrize("name", [None, 5, b"q", "", "\ud800", ["q"]])
async def test_a_name_that_cannot_be_sent_is_refused_before_it_is_sent(name: Any) -> None:
    unused = _Flaky()
    async with QueueServiceClient("http://one", transport=unused) as queues:
        calls = [
            queues.send(name, 1),
            queues.poll(name),
            queues.peek(name),
            queues.acknowledge(name, ["x"]),
            queues.renew(name, ["x"]),
            queues.get_message_count(name),
            queues.get_message_count_up_to(name, 1),
            queues.get_claim_count(name),
            queues.unclaim_all(name),
            queues.purge(name),
            queues.move_async(name, "q"),
            queues.move_async("q", name),
            queues.get_move_status(name),
            queues.send_all(name, [1]),
            queues.send_all(name),
        ]
        if not isinstance(name, list):
            calls.append(queues.send_all({"q": [1], name: [1]}))
        for call in calls:
            with pytest.raises(zq.InvalidOptionError):
                await call
    assert unused.asked == []


async def test_a_call_of_a_closed_client_raises_an_error_of_this_library() -> None:
    queues = QueueServiceClient("http://one", transport=_Flaky())
    await queues.aclose()
    with pytest.raises(ServiceError, match="closed"):
        await queues.send("q", 1)


async def test_a_call_whose_client_is_closed_before_its_retry_raises_an_error_of_this_library() -> None:
    def close_and_fail(_: httpx.Request) -> httpx.Response:
        closing.append(asyncio.ensure_future(queues.aclose()))
        return httpx.Response(503)

    closing: list[asyncio.Future[None]] = []
    queues = QueueServiceClient("http://one", transport=httpx.MockTransport(close_and_fail))
    with pytest.raises(ServiceError, match="this client is closed"):
        await queues.send("q", 1)
    assert len(closing) == 1
    await closing[0]


async def test_a_name_that_makes_an_address_too_long_raises_an_error_of_this_library() -> None:
    async with QueueServiceClient("http://one", transport=_Flaky()) as queues:
        with pytest.raises(ServiceError, match="URL too long"):
            await queues.send("q" * 70_000, 1)


async def test_a_value_that_is_not_json_is_refused_before_it_is_sent() -> None:
    async with QueueServiceClient("http://one", transport=_Flaky()) as queues:
        for value in (object(), float("nan"), {b"bytes": 1}):
            with pytest.raises(zq.PayloadError):
                await queues.send("q", value)  # type: ignore[arg-type]  # as in a program without a type checker


class _Flaky(httpx.AsyncBaseTransport):
    """Fails with each of these failures in turn, then answers."""

    def __init__(self, *failures: int | Exception) -> None:
        self.failures = list(failures)
        self.asked: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(str(request.url))
        if self.failures:
            failure = self.failures.pop(0)
            if isinstance(failure, Exception):
                raise failure
            return httpx.Response(failure, text="trouble", request=request)
        return httpx.Response(200, json=7, request=request)


@pytest.mark.parametrize("ttl", [0.4, timedelta(milliseconds=1), 0.999])
async def test_a_claim_under_a_second_holds_and_its_renewal_releases_nothing(
    queues: QueueServiceClient, ttl: float | timedelta
) -> None:
    await queues.send_all("q", [1, 2])
    short = await queues.poll("q", claim_ttl=ttl)
    assert len(short) == 2
    assert await queues.get_claim_count("q") == 2
    await queues.unclaim_all("q")
    (held, other) = await queues.poll("q", claim_ttl=60)
    await queues.renew("q", [held.id, other.id], claim_ttl=ttl)
    assert await queues.get_claim_count("q") == 2


@pytest.mark.parametrize(("asked", "sent"), [(0, "0"), (0.4, "1"), (1, "1"), (1.2, "2"), (timedelta(minutes=1), "60")])
async def test_durations_are_rounded_up_to_whole_seconds(asked: float | timedelta, sent: str) -> None:
    urls: list[httpx.URL] = []

    def answer(request: httpx.Request) -> httpx.Response:
        urls.append(request.url)
        return httpx.Response(200, json=[] if request.method == "GET" else {"success": True})

    async with QueueServiceClient("http://one", transport=httpx.MockTransport(answer)) as queues:
        await queues.poll("q", claim_ttl=asked, wait=asked)
        await queues.renew("q", ["id"], claim_ttl=asked)
    poll, renew = urls
    assert (poll.params["ttl"], poll.params.get("wait", "0"), renew.params["ttl"]) == (sent, sent, sent)


@pytest.mark.parametrize("wrong", ["abc", b"abc", {"a": 1}, 5, None])
async def test_an_argument_that_is_not_a_collection_is_refused_before_it_is_sent(wrong: Any) -> None:
    unused = _Flaky()
    async with QueueServiceClient("http://one", transport=unused) as queues:
        calls = [
            queues.send_all("q", wrong),
            queues.send_all({"good": [1], "q": wrong}),
            queues.send_all({"q": [1]}, [2]),
            queues.acknowledge("q", wrong),
            queues.renew("q", wrong),
        ]
        for call in calls:
            with pytest.raises(zq.InvalidOptionError):
                await call
    assert unused.asked == []


@pytest.mark.parametrize("limit", [None, "3", 2.5, True, [1]])
async def test_a_limit_that_is_not_an_integer_is_refused_before_it_is_sent(limit: Any) -> None:
    unused = _Flaky()
    async with QueueServiceClient("http://one", transport=unused) as queues:
        for call in (
            queues.poll("q", limit=limit),
            queues.peek("q", limit),
            queues.get_message_count_up_to("q", limit),
        ):
            with pytest.raises(zq.InvalidOptionError, match="limit="):
                await call
    assert unused.asked == []


async def test_messages_in_place_of_their_ids_are_refused_before_they_are_sent() -> None:
    unused = _Flaky()
    async with QueueServiceClient("http://one", transport=unused) as queues:
        for call in (queues.acknowledge, queues.renew):
            with pytest.raises(zq.InvalidOptionError, match="the `id` of each message"):
                await call("q", [ServiceMessage("id", 1)])  # type: ignore[list-item]  # as without a type checker
    assert unused.asked == []


@pytest.mark.parametrize("failure", [500, 502, 503, httpx.ConnectError("refused"), httpx.ReadTimeout("late")])
async def test_a_server_failure_is_retried_five_times(failure: int | Exception) -> None:
    flaky = _Flaky(*[failure] * 5)
    async with QueueServiceClient(FixedHosts("http://one", "http://two"), transport=flaky) as queues:
        assert await queues.get_message_count("q") == 7
    assert len(flaky.asked) == 6
    failing = _Flaky(*[failure] * 7)
    async with QueueServiceClient("http://one", transport=failing) as queues:
        with pytest.raises(ServiceUnavailableError):
            await queues.get_message_count("q")
    assert len(failing.asked) == 6


@pytest.mark.parametrize("status", [400, 403, 404, 415, 429])
async def test_a_refusal_is_not_retried(status: int) -> None:
    flaky = _Flaky(status)
    async with QueueServiceClient("http://one", transport=flaky) as queues:
        with pytest.raises(ServiceError):
            await queues.get_message_count("q")
    assert len(flaky.asked) == 1


@pytest.mark.parametrize("answer", ["no json", '"text"', "{}", "null"])
async def test_a_response_that_is_not_of_this_service_is_an_error(answer: str) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, text=answer))
    async with QueueServiceClient("http://one", transport=transport) as queues:
        for call in (queues.get_message_count("q"), queues.poll("q"), queues.move_async("a", "b")):
            with pytest.raises(ServiceError):
                await call


@pytest.mark.parametrize(
    "response",
    [
        httpx.Response(302, headers={"Location": "https://login.example/"}),
        httpx.Response(200, html="<h1>Sign in</h1>"),
        httpx.Response(200, json={"success": False}),
        httpx.Response(200, json=[]),
        httpx.Response(204),
    ],
    ids=["a redirect", "a page", "a failure", "an array", "nothing"],
)
async def test_a_change_that_no_service_has_confirmed_is_an_error(response: httpx.Response) -> None:
    async with QueueServiceClient("http://one", transport=httpx.MockTransport(lambda _: response)) as queues:
        for call in (
            queues.send("q", 1),
            queues.send_all("q", [1]),
            queues.send_all({"q": [1]}),
            queues.acknowledge("q", ["id"]),
            queues.renew("q", ["id"]),
            queues.unclaim_all("q"),
            queues.purge("q"),
        ):
            with pytest.raises(ServiceError):
                await call


@pytest.mark.parametrize("answer", [[1], [{"payload": 1}], [{"id": 1, "payload": 1}], [{"id": "id"}], {}, {"from": 1}])
async def test_a_response_of_another_shape_is_an_error(answer: object) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=answer))
    async with QueueServiceClient("http://one", transport=transport) as queues:
        for call in (queues.poll("q"), queues.peek("q"), queues.get_move_status("queue-1")):
            with pytest.raises(ServiceError):
                await call


async def test_each_attempt_chooses_its_endpoint(zookeeper: str, queue_root: str, service: Service) -> None:
    async with AsyncExitStack() as stack:
        dying = AsyncExitStack()
        url = await dying.enter_async_context(serving(zookeeper, queue_root, Settings()))
        queues = await stack.enter_async_context(QueueServiceClient(FixedHosts(url, service.url), key=service.key))
        await queues.send("q", 1)
        await dying.aclose()
        for number in range(10):
            await queues.send("q", number)
        assert await queues.get_message_count("q") == 11


async def test_servers_are_found_by_their_registration(
    service: Service, session: zq.QueueSession, server_view: Observer
) -> None:
    address = service.url.removeprefix("http://")
    cluster = f"test{core_of(session).root.replace('/', '-')}"
    async with QueueServiceClient(RegisteredHosts(session, cluster), key=service.key) as queues:
        with pytest.raises(ServiceUnavailableError, match="no server"):
            await queues.send("q", 1)
        async with registered(core_of(session), Registration(cluster, address, address)):
            await server_view.until_there(f"/ostrich/{cluster}-emodb-dedupq-1/{address}")
            await queues.send("q", 1)
            entry: dict[str, Any] = json.loads(await server_view.get(f"/ostrich/{cluster}-emodb-queue-1/{address}"))
        assert await server_view.children(f"/ostrich/{cluster}-emodb-queue-1") == []
    assert set(entry) == {"registration-time", "name", "id", "payload"}
    assert (entry["name"], entry["id"]) == (f"{cluster}-emodb-queue-1", address)
    assert entry["registration-time"].endswith("Z")
    assert len(entry["registration-time"]) == len("2026-01-01T00:00:00.000Z")
    assert json.loads(entry["payload"]) == {
        "serviceUrl": f"{service.url}/queue/1",
        "adminUrl": service.url,
        "extensions": {"proxy": False},
    }
    for kind in ("queue", "dedupq"):
        await server_view.delete(f"/ostrich/{cluster}-emodb-{kind}-1")


async def test_registrations_that_cannot_be_read_are_an_error(open_session: Opener) -> None:
    session = await open_session()
    core_of(session).zookeeper.kill()
    with pytest.raises(ServiceUnavailableError, match="of 'main' cannot be read: the ZooKeeper client has been closed"):
        await RegisteredHosts(session, "main").urls(Kind.QUEUE)


async def test_a_registration_that_is_no_address_gets_no_requests(
    session: zq.QueueSession, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    own = Registration("main", service.url.removeprefix("http://"), "127.0.0.1:1")
    wrong = Registration("main", "xn--:80", "127.0.0.1:1")
    async with registered(core_of(session), own), registered(core_of(session), wrong):

        async def both() -> bool:
            return len(await service_urls(core_of(session).zookeeper, "main", Kind.QUEUE)) == 2

        await eventually(both)
        async with QueueServiceClient(RegisteredHosts(session, "main"), key=service.key) as queues:
            for number in range(20):
                await queues.send("q", number)
    assert "'http://xn--:80/queue/1' is registered but gets no requests, because it is not an address" in caplog.text


async def test_a_call_ends_while_zookeeper_does_not_show_the_registrations(
    zookeeper_proxy: ZooKeeperProxy, queue_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "RETRIES", 1)
    async with zq.connect(zookeeper_proxy.hosts, root=queue_root, session_timeout=20) as session:
        zookeeper_proxy.refuse()
        zookeeper_proxy.reset_connections()
        async with QueueServiceClient(RegisteredHosts(session, "main"), timeout=0.2) as queues:
            with pytest.raises(ServiceUnavailableError, match=r"servers of queue were not known within 0\.2 s"):
                await queues.send("q", 1)
        await zookeeper_proxy.listen()


@pytest.mark.parametrize(("wait", "allowed"), [(0, 10), (20, 30)])
async def test_a_poll_that_waits_at_the_server_may_take_as_much_longer(wait: int, allowed: int) -> None:
    timeouts: list[dict[str, float]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        timeouts.append(request.extensions["timeout"])
        return httpx.Response(200, json=[])

    async with QueueServiceClient("http://one", timeout=10, transport=httpx.MockTransport(answer)) as queues:
        await queues.poll("q", wait=wait)
    assert timeouts[0]["read"] == allowed


async def test_a_retry_chooses_a_server_that_has_not_failed_yet() -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        return httpx.Response(503 if len(asked) < 4 else 200, json=7)

    hosts = FixedHosts("http://one", "http://two", "http://three", "http://four")
    async with QueueServiceClient(hosts, transport=httpx.MockTransport(answer)) as queues:
        assert await queues.get_message_count("q") == 7
    assert set(asked) == {"one", "two", "three", "four"}


async def test_a_server_stays_registered_when_the_session_of_its_earlier_process_ends(
    open_session: Opener, server_view: Observer, expire: Any
) -> None:
    session, earlier = await open_session(), await open_session()
    cluster = f"earlier{core_of(session).root.replace('/', '-')}"
    folders = [f"/ostrich/{cluster}-emodb-{kind}-1" for kind in Kind]
    for folder in folders:
        await core_of(earlier).zookeeper.ensure(folder)
        await core_of(earlier).zookeeper.multi([Create(f"{folder}/host:1", b"{}", ephemeral=True)])
    before = [await server_view.ephemerals(folder) for folder in folders]
    async with registered(core_of(session), Registration(cluster, "host:1", "host:1")):

        async def replaced() -> bool:
            now = [await server_view.ephemerals(folder) for folder in folders]
            return all(now) and not any(one == other for one, other in zip(now, before, strict=True))

        await eventually(replaced, 30)
        await expire(earlier)
        assert all([await server_view.ephemerals(folder) for folder in folders])
    for folder in folders:
        await server_view.delete(folder)


async def test_a_registration_that_cannot_be_replaced_is_an_error_in_the_log(
    session: zq.QueueSession, server_view: Observer, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = f"obstructed{core_of(session).root.replace('/', '-')}"
    folder = f"/ostrich/{cluster}-emodb-queue-1"
    await core_of(session).zookeeper.ensure(f"{folder}/host:1/of-another-program")
    async with registered(core_of(session), Registration(cluster, "host:1", "host:1")):

        async def logged() -> bool:
            return "no client finds this server: an earlier registration of host:1 cannot be replaced" in caplog.text

        await eventually(logged, 30)
    await server_view.delete(f"{folder}/host:1/of-another-program")
    await server_view.delete(f"{folder}/host:1")
    await server_view.delete(folder)


async def test_the_key_is_sent_to_allowed_registered_hosts_only(
    session: zq.QueueSession, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    zookeeper = core_of(session).zookeeper
    own = Registration("main", service.url.removeprefix("http://"), "127.0.0.1:1")
    thief = Registration("main", "thief.example:80", "thief.example:81")
    async with registered(core_of(session), own), registered(core_of(session), thief):

        async def both() -> bool:
            return len(await service_urls(zookeeper, "main", Kind.QUEUE)) == 2

        await eventually(both)
        for allow, hosts in ((None, 2), (["127.0.0.*"], 1), (["http://127.0.0.1"], 1), (["https://*"], 0), ([], 0)):
            found = await RegisteredHosts(session, "main", allow=allow).urls(Kind.QUEUE)
            assert len(found) == hosts
            assert allow is None or not any("thief" in url for url in found)
        assert "thief.example" in caplog.text
        with pytest.raises(zq.InvalidOptionError, match="allow takes a collection"):
            RegisteredHosts(session, allow="127.0.0.1")


async def test_a_server_registers_again_in_its_next_session(
    open_session: Opener, server_view: Observer, expire: Any
) -> None:
    session = await open_session()
    cluster = f"test{core_of(session).root.replace('/', '-')}"
    path = f"/ostrich/{cluster}-emodb-queue-1"
    async with registered(core_of(session), Registration(cluster, "host:1", "host:1")):
        await server_view.until_there(f"{path}/host:1")
        before = await server_view.ephemerals(path)
        await expire(session)

        async def registered_again() -> bool:
            now = await server_view.ephemerals(path)
            return bool(now) and now != before

        await eventually(registered_again, 60)
    for kind in ("queue", "dedupq"):
        await server_view.delete(f"/ostrich/{cluster}-emodb-{kind}-1")


async def test_every_server_refuses_a_revoked_key(
    service: Service, session: zq.QueueSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiozkqueue.http.core.keys.FRESH", 0.2)
    keys = Keys(core_of(session))
    key = await keys.create("short", ["queue|*|*"])
    async with QueueServiceClient(service.url, key=key) as queues:
        await queues.send("q", 1)
        assert await keys.revoke("short") == 1

        async def refused() -> bool:
            try:
                await queues.send("q", 1)
            except UnauthorizedError:
                return True
            return False

        await eventually(refused, 60)
