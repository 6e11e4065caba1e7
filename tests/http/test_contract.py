"""EmoDB's contract over a real socket: each route and its guarantees. `test_refusals` has the refusals."""

from __future__ import annotations

import asyncio
import json
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.http import Keys, Settings
from aiozkqueue.session.internals import core_of
from tests.integration.queue.test_staged_batches import Writer

if TYPE_CHECKING:
    from tests.http.conftest import Service, Starter
    from tests.observer import Observer

pytestmark = pytest.mark.timeout(180)

OK = {"success": True}
ILLEGAL = "java.lang.IllegalArgumentException"
JSON = {"Content-Type": "application/json"}
kinds = pytest.mark.parametrize("kind", ["queue", "dedupq"])


def payloads(messages: list[dict[str, Any]]) -> list[Any]:
    return [message["payload"] for message in messages]


# -- routes


@kinds
@pytest.mark.parametrize("message", [None, True, 1, 1.5, "text", "é☃", [1, [2]], {"a": {"b": None}}, "", [], {}])
async def test_any_json_value_is_polled_as_it_was_sent(service: Service, kind: str, message: Any) -> None:
    sent = await service.post(f"/{kind}/1/q/send", content=json.dumps(message), headers=JSON)
    assert (sent.status_code, sent.json()) == (200, OK)
    polled = await service.get(f"/{kind}/1/q/poll")
    assert polled.headers["content-type"] == "application/json"
    (message_polled,) = polled.json()
    assert set(message_polled) == {"id", "payload"}
    assert message_polled["payload"] == message
    assert type(message_polled["payload"]) is type(message)


@kinds
async def test_a_batch_is_sent(service: Service, kind: str) -> None:
    sent = await service.post(f"/{kind}/1/q/sendbatch", json=[1, "two", None])
    assert (sent.status_code, sent.json()) == (200, OK)
    assert payloads((await service.get(f"/{kind}/1/q/poll")).json()) == [1, "two", None]
    assert (await service.post(f"/{kind}/1/q/sendbatch", json=[])).json() == OK


@kinds
async def test_batches_are_sent_to_several_queues(service: Service, kind: str) -> None:
    sent = await service.post(f"/{kind}/1/_sendbatch", json={"one": [1, 2], "two": [3], "none": []})
    assert (sent.status_code, sent.json()) == (200, OK)
    assert payloads((await service.get(f"/{kind}/1/one/peek")).json()) == [1, 2]
    assert payloads((await service.get(f"/{kind}/1/two/peek")).json()) == [3]


@kinds
async def test_a_poll_claims_and_an_acknowledgement_removes(service: Service, kind: str) -> None:
    await service.post(f"/{kind}/1/q/sendbatch", json=list(range(15)))
    first = (await service.get(f"/{kind}/1/q/poll")).json()
    assert len(first) == 10
    rest = (await service.get(f"/{kind}/1/q/poll", params={"limit": 1000, "ttl": 3600})).json()
    assert sorted(payloads(first + rest)) == list(range(15))
    assert (await service.get(f"/{kind}/1/q/poll")).json() == []
    done = await service.post(f"/{kind}/1/q/ack", json=[message["id"] for message in first + rest])
    assert (done.status_code, done.json()) == (200, OK)
    assert (await service.get(f"/{kind}/1/q/size")).json() == 0


@kinds
async def test_a_peek_shows_claimed_messages_too(service: Service, kind: str) -> None:
    await service.post(f"/{kind}/1/q/sendbatch", json=list(range(12)))
    await service.get(f"/{kind}/1/q/poll", params={"limit": 5})
    assert len((await service.get(f"/{kind}/1/q/peek")).json()) == 10
    assert len((await service.get(f"/{kind}/1/q/peek", params={"limit": 1000})).json()) == 12
    assert (await service.get(f"/{kind}/1/q/peek", params={"limit": 1})).json()[0]["payload"] == 0


@kinds
async def test_size_counts_all_messages_and_claimcount_only_claimed_ones(service: Service, kind: str) -> None:
    await service.post(f"/{kind}/1/q/sendbatch", json=[1, 2, 3])
    await service.get(f"/{kind}/1/q/poll", params={"limit": 2})
    assert (await service.get(f"/{kind}/1/q/size")).json() == 3
    assert (await service.get(f"/{kind}/1/q/size", params={"limit": 1})).json() == 3
    assert (await service.get(f"/{kind}/1/q/claimcount")).json() == 2


async def test_claimcount_counts_no_message_of_a_pending_batch(service: Service, session: zq.QueueSession) -> None:
    await service.post("/queue/1/q/sendbatch", json=[1, 2])
    await service.get("/queue/1/q/poll", params={"limit": 1})
    writer = Writer(session, queue="q")
    fence = await writer.begin()
    await writer.put(fence, "3", "4")
    assert (await service.get("/queue/1/q/claimcount")).json() == 1


async def test_an_expired_message_is_not_shown_as_claimable(service: Service, session: zq.QueueSession) -> None:
    await service.post("/queue/1/q/send", json="lasting")
    await session.queue("q").put(b'"expiring"', ttl=0.2)
    await asyncio.sleep(0.3)
    async with asyncio.timeout(30):
        while payloads(await service.poll("q", ttl=0)) != ["lasting"]:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.1)
    assert await session.queue("q").size() == 2, "no consumer has removed it"


@kinds
async def test_unclaimall_makes_all_claimed_messages_pollable_at_once(service: Service, kind: str) -> None:
    await service.post(f"/{kind}/1/q/sendbatch", json=[1, 2])
    await service.get(f"/{kind}/1/q/poll", params={"ttl": 3600})
    done = await service.post(f"/{kind}/1/q/unclaimall")
    assert (done.status_code, done.json()) == (200, OK)
    assert sorted(payloads((await service.get(f"/{kind}/1/q/poll")).json())) == [1, 2]


@kinds
async def test_a_purge_deletes_all_messages_including_claimed_ones(service: Service, kind: str) -> None:
    await service.post(f"/{kind}/1/q/sendbatch", json=[1, 2])
    await service.get(f"/{kind}/1/q/poll", params={"limit": 1})
    done = await service.http.delete(f"/{kind}/1/q")
    assert (done.status_code, done.json()) == (200, OK)
    assert (await service.get(f"/{kind}/1/q/size")).json() == 0


@kinds
async def test_a_move_moves_claimed_messages_and_ends_their_claims(service: Service, kind: str) -> None:
    await service.post(f"/{kind}/1/from/sendbatch", json=[1, 2, 3])
    await service.get(f"/{kind}/1/from/poll", params={"limit": 1, "ttl": 3600})
    begun = await service.post(f"/{kind}/1/_move", params={"from": "from", "to": "to"})
    assert begun.status_code == 200
    (reference,) = begun.json().values()
    status = await _ended(service, kind, reference)
    assert status == {"from": "from", "to": "to", "status": "COMPLETE"}
    assert (await service.get(f"/{kind}/1/from/size")).json() == 0
    assert sorted(payloads((await service.get(f"/{kind}/1/to/poll")).json())) == [1, 2, 3]


async def test_each_move_is_a_new_job(service: Service) -> None:
    await service.post("/queue/1/from/send", json=1)
    asked = {"from": "from", "to": "to"}
    references = [(await service.post("/queue/1/_move", params=asked)).json()["id"] for _ in range(2)]
    assert len(set(references)) == 2
    for reference in references:
        await _ended(service, "queue", reference)


async def _ended(service: Service, kind: str, reference: str) -> dict[str, str]:
    async with asyncio.timeout(60):
        while True:
            answer = await service.get(f"/{kind}/1/_move/{reference}")
            assert answer.status_code == 200
            status: dict[str, str] = answer.json()
            if status["status"] != "IN_PROGRESS":
                return status
            await asyncio.sleep(0.05)


async def test_the_key_is_accepted_in_the_url(service: Service) -> None:
    service.http.headers.pop("X-BV-API-Key")
    assert (await service.get("/queue/1/q/size", params={"APIKey": service.key})).json() == 0


async def test_the_queue_and_dedup_services_are_separate(service: Service) -> None:
    await service.post("/queue/1/q/send", json=1)
    await service.post("/dedupq/1/q/send", json=2)
    assert payloads((await service.get("/queue/1/q/peek")).json()) == [1]
    assert payloads((await service.get("/dedupq/1/q/peek")).json()) == [2]


# -- guarantees


async def test_a_poll_with_a_ttl_of_zero_claims_nothing(service: Service) -> None:
    await service.post("/queue/1/q/sendbatch", json=[1, 2, 3])
    await service.get("/queue/1/q/poll", params={"limit": 1})
    for _ in range(2):
        assert payloads(await service.poll("q", ttl=0)) == [2, 3]
        assert payloads(await service.poll("q", ttl=0, limit=1)) == [2]
    assert (await service.get("/queue/1/q/claimcount")).json() == 1


async def test_a_message_is_polled_again_after_its_claim_ends(service: Service) -> None:
    await service.post("/queue/1/q/send", json=1)
    began = monotonic()
    (first,) = await service.poll("q", ttl=1)
    (repeated,) = await service.poll("q", wait=60)
    assert repeated == first
    assert monotonic() - began > 0.95


async def test_a_renewal_never_shortens_a_claim(service: Service) -> None:
    await service.post("/queue/1/q/send", json=1)
    (message,) = await service.poll("q", ttl=60)
    assert (await service.post("/queue/1/q/renew", params={"ttl": 1}, json=[message["id"]])).json() == OK
    assert await service.poll("q", wait=3) == []


async def test_a_renewal_claims_an_unclaimed_message(service: Service) -> None:
    await service.post("/queue/1/q/send", json=1)
    (message,) = (await service.get("/queue/1/q/peek")).json()
    assert (await service.post("/queue/1/q/renew", params={"ttl": 60}, json=[message["id"]])).json() == OK
    assert await service.poll("q") == []
    assert (await service.get("/queue/1/q/claimcount")).json() == 1


async def test_a_renewal_with_a_ttl_of_zero_releases_the_claim(service: Service) -> None:
    await service.post("/queue/1/q/sendbatch", json=[1, 2])
    first, _ = await service.poll("q", ttl=3600)
    assert (await service.post("/queue/1/q/renew", params={"ttl": 0}, json=[first["id"]])).json() == OK
    assert await service.poll("q") == [first]


async def test_an_acknowledgement_needs_no_live_claim_and_can_be_repeated(service: Service) -> None:
    await service.post("/queue/1/q/sendbatch", json=[1, 2])
    (peeked, _) = (await service.get("/queue/1/q/peek")).json()
    for _ in range(2):
        assert (await service.post("/queue/1/q/ack", json=[peeked["id"], peeked["id"]])).json() == OK
    assert payloads(await service.poll("q")) == [2]
    assert (await service.post("/queue/1/q/ack", json=[])).json() == OK


@pytest.mark.parametrize("path", ["ack", "renew"])
async def test_a_malformed_id_or_an_id_of_another_queue_refuses_the_whole_call(service: Service, path: str) -> None:
    await service.post("/queue/1/_sendbatch", json={"q": [1], "other": [2]})
    await service.post("/dedupq/1/q/send", json=3)
    (own,) = (await service.get("/queue/1/q/peek")).json()
    (foreign,) = (await service.get("/queue/1/other/peek")).json()
    (dedup,) = (await service.get("/dedupq/1/q/peek")).json()
    for bad in (foreign["id"], dedup["id"], "nonsense", "", own["id"][:-1], "../" + own["id"], "é" * 9000):
        answer = await service.post(f"/queue/1/q/{path}", json=[own["id"], bad])
        assert (answer.status_code, answer.headers["X-BV-Exception"]) == (400, ILLEGAL)
    assert len(await service.poll("q")) == 1


async def test_all_batches_are_checked_before_any_is_sent(service: Service) -> None:
    for bad in ({"UPPER": [1]}, {"b": ["x" * 31_000]}, {"b": 1}):
        answer = await service.post("/queue/1/_sendbatch", json={"a": [1], **bad})
        assert answer.status_code == 400
        assert (await service.get("/queue/1/a/size")).json() == 0


async def test_equal_messages_sent_between_two_polls_collapse(service: Service) -> None:
    await service.post("/dedupq/1/q/send", json={"a": 1})
    await service.post("/dedupq/1/q/send", content=b' {"a" : 1} ', headers=JSON)
    assert len((await service.get("/dedupq/1/q/peek")).json()) == 2
    assert len((await service.get("/dedupq/1/q/poll", params={"ttl": 0})).json()) == 1
    (message,) = (await service.get("/dedupq/1/q/poll")).json()
    await service.post("/dedupq/1/q/ack", json=[message["id"]])
    assert (await service.get("/dedupq/1/q/size")).json() == 0


async def test_an_equal_message_sent_after_a_poll_is_separate(service: Service) -> None:
    await service.post("/dedupq/1/q/send", json="m")
    (first,) = (await service.get("/dedupq/1/q/poll")).json()
    await service.post("/dedupq/1/q/send", json="m")
    (second,) = (await service.get("/dedupq/1/q/poll")).json()
    assert (first["payload"], second["payload"]) == ("m", "m")
    await service.post("/dedupq/1/q/ack", json=[first["id"]])
    assert (await service.get("/dedupq/1/q/peek")).json() == [second]


async def test_requests_to_a_missing_queue_do_not_create_it(
    service: Service, server_view: Observer, queue_root: str
) -> None:
    for kind in ("queue", "dedupq"):
        for path, answer in (("size", 0), ("claimcount", 0), ("peek", []), ("poll", []), ("poll?ttl=0", [])):
            assert (await service.get(f"/{kind}/1/q/{path}")).json() == answer
        assert (await service.post(f"/{kind}/1/q/unclaimall")).json() == OK
        assert (await service.post(f"/{kind}/1/q/ack", json=[])).json() == OK
        assert (await service.post(f"/{kind}/1/q/renew", json=[])).json() == OK
        assert (await service.http.delete(f"/{kind}/1/q")).json() == OK
    assert [name for name in await server_view.children(queue_root) if not name.startswith(".")] == []


async def test_messages_of_a_python_program_are_shown_as_json(service: Service, session: zq.QueueSession) -> None:
    bodies = [b'{"a": 1}', b"plain", b"\xff", b"NaN", b"[" * 5000, b""]
    await session.queue("q").put_many(bodies)
    shown = (await service.get("/queue/1/q/peek")).json()
    assert payloads(shown) == [{"a": 1}, "plain", "\ufffd", "NaN", "[" * 5000, ""]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le"])
async def test_json_of_a_python_program_in_another_encoding_breaks_no_response(
    service: Service, session: zq.QueueSession, encoding: str
) -> None:
    await session.queue("q").put_many([body := "12".encode(encoding), b"2"])
    for path in ("peek", "poll"):
        assert payloads((await service.get(f"/queue/1/q/{path}")).json()) == [body.decode("utf-8", "replace"), 2]


async def test_a_poll_that_claims_nothing_returns_nothing_of_a_paused_queue(
    service: Service, session: zq.QueueSession
) -> None:
    await service.post("/queue/1/q/send", json=1)
    await session.queue("q").configure(zq.QueueConfig(paused=True))
    assert (await service.get("/queue/1/q/poll?ttl=0")).json() == (await service.get("/queue/1/q/poll")).json() == []
    assert payloads((await service.get("/queue/1/q/peek")).json()) == [1]


async def test_json_of_the_maximum_depth_is_polled(service: Service) -> None:
    deep = b"[" * 400 + b'"["' + b"]" * 400
    assert (await service.post("/queue/1/q/send", content=deep, headers=JSON)).json() == OK
    polled = await service.get("/queue/1/q/poll")
    assert deep in polled.content


# -- additions to EmoDB


async def test_a_long_poll_waits_for_a_message(service: Service) -> None:
    polling = asyncio.create_task(service.poll("q", wait=60))
    await asyncio.sleep(0.3)
    assert not polling.done()
    await service.post("/queue/1/q/send", json=1)
    assert payloads(await polling) == [1]


async def test_purge_can_require_its_own_permission(start: Starter, session: zq.QueueSession) -> None:
    service = await start(Settings(separate_purge=True))
    poller = await Keys(core_of(session)).create("poller", ["queue|poll|*"])
    purger = await Keys(core_of(session)).create("purger", ["queue|purge|*"])
    assert (await service.http.delete("/queue/1/q", headers={"X-BV-API-Key": poller})).status_code == 403
    assert (await service.http.delete("/queue/1/q", headers={"X-BV-API-Key": purger})).json() == OK


async def test_openapi_lists_each_operation(service: Service) -> None:
    paths = (await service.get("/openapi.json")).json()["paths"]
    rows = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    for kind in ("queue", "dedupq"):
        for method, path in (
            ("POST", "{queue}/send"),
            ("POST", "{queue}/sendbatch"),
            ("POST", "_sendbatch"),
            ("GET", "{queue}/poll"),
            ("GET", "{queue}/peek"),
            ("POST", "{queue}/ack"),
            ("POST", "{queue}/renew"),
            ("GET", "{queue}/size"),
            ("GET", "{queue}/claimcount"),
            ("POST", "{queue}/unclaimall"),
            ("DELETE", "{queue}"),
            ("POST", "_move"),
            ("GET", "_move/{reference}"),
        ):
            assert (method, f"/{kind}/1/{path}") in rows


async def test_messages_of_bundles_are_peeked_polled_and_acknowledged(
    service: Service, session: zq.QueueSession
) -> None:
    await service.post("/queue/1/q/send", json="first")
    await session.queue("q").configure(zq.QueueConfig(bundle=64))
    await session.queue("q").put_many([b"%d" % number for number in range(100)])
    assert (await service.get("/queue/1/q/size")).json() == 101
    peeked = (await service.get("/queue/1/q/peek", params={"limit": 60})).json()
    assert [message["payload"] for message in peeked] == ["first", *range(59)]
    polled: list[dict[str, Any]] = []
    while batch := await service.poll("q", limit=40, ttl=30):
        polled += batch
        answer = await service.post("/queue/1/q/ack", json=[message["id"] for message in batch])
        assert answer.status_code == 200
    assert sorted(message["payload"] for message in polled if message["payload"] != "first") == list(range(100))
    assert (await service.get("/queue/1/q/size")).json() == 0
