"""Message ids: a client can settle only messages that a server has shown to it."""

from __future__ import annotations

import json
import traceback
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.http import Keys
from aiozkqueue.http.core.tokens import MessageIds
from aiozkqueue.layout import lease_token
from aiozkqueue.session.internals import core_of
from tests.faults.account import multi_of

if TYPE_CHECKING:
    from aiozkqueue.testing import ZooKeeperProxy
    from tests.http.conftest import Service, Starter
    from tests.observer import Observer

pytestmark = pytest.mark.timeout(180)

JSON = {"Content-Type": "application/json"}
ILLEGAL = "java.lang.IllegalArgumentException"


async def bury(session: zq.QueueSession, number: int) -> None:
    queue = session.queue("q")
    await queue.put_many([b"%d" % n for n in range(number)])
    async with session.transaction() as tx:
        for message in await tx.take_many(queue, number, timeout=30):
            tx.reject(message, "broken")


async def refused(service: Service, queue: str, ids: list[str]) -> None:
    """Assert that neither ack nor renew accepts any of these ids, alone or with others."""
    for path in ("ack", "renew"):
        for message_id in ids:
            answer = await service.post(f"/queue/1/{queue}/{path}", content=json.dumps([message_id]), headers=JSON)
            assert (answer.status_code, answer.headers.get("X-BV-Exception")) == (400, ILLEGAL), message_id
        answer = await service.post(f"/queue/1/{queue}/{path}", content=json.dumps(ids), headers=JSON)
        assert answer.status_code == 400


async def test_a_poll_key_cannot_delete_or_claim_dead_letters_with_forged_ids(
    service: Service, session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    await bury(session, 3)
    service.http.headers["X-BV-API-Key"] = await Keys(core_of(session)).create("polls", ["queue|poll|*"])
    await service.post("/queue/1/q/send", json=1)
    names = [name.rpartition("/")[2] for name in await server_view.tree(f"{queue_root}/q/dlq")]
    letters = [name for name in names if name.startswith("item-")]
    assert len(letters) == 3
    before = sorted(await server_view.tree(f"{queue_root}/q"))
    await refused(service, "q", [lease_token("q", f"dlq/{name}") for name in letters])
    assert sorted(await server_view.tree(f"{queue_root}/q")) == before


@pytest.mark.parametrize("folder", ["dlq", "meta", "history/1700000000", "locks", "items/..", "lanes", "later/x"])
async def test_a_signed_id_of_a_path_outside_the_lanes_is_refused(
    service: Service, session: zq.QueueSession, folder: str
) -> None:
    signer = await MessageIds(core_of(session)).signer()
    await refused(service, "q", [signer.message_id("q", f"{folder}/item-iabcdef-0000000001")])


async def test_forged_mangled_and_foreign_ids_are_refused_and_change_nothing(service: Service) -> None:
    await service.post("/queue/1/q/sendbatch", json=[1, 2])
    await service.post("/queue/1/other/send", json=3)
    (first, second) = await service.poll("q", ttl=3600)
    (foreign,) = await service.poll("other", ttl=3600)
    place, secret, signature = first["id"].rsplit("~", 2)
    forged = [
        foreign["id"],
        lease_token("q", place.replace("~", "/")),
        f"{place}~{secret}~{'0' * 32}",
        f"{place}~{secret}~{signature[:-1]}",
        f"{place}~{secret}~☃",
        f"{place}~{secret}~\ud800",
        f"{place}~00000000~{signature}",
        f"{second['id'].rsplit('~', 2)[0]}~{secret}~{signature}",
        first["id"] + " ",
        "",
        "~~",
        "~" * 3000,
    ]
    await refused(service, "q", forged)
    assert (await service.get("/queue/1/q/claimcount")).json() == 2
    assert (await service.get("/queue/1/q/size")).json() == 2


async def test_an_id_from_one_server_is_valid_at_another(
    service: Service, start: Starter, session: zq.QueueSession
) -> None:
    second = await start()
    await service.post("/queue/1/q/sendbatch", json=[1, 2])
    ids = [message["id"] for message in (await service.get("/queue/1/q/peek")).json()]
    assert (await second.post("/queue/1/q/ack", json=ids)).status_code == 200
    assert await session.queue("q").size() == 0


async def test_ids_stay_valid_after_one_rotation_and_are_refused_after_two(
    service: Service, start: Starter, session: zq.QueueSession
) -> None:
    await service.post("/queue/1/q/sendbatch", json=[1, 2, 3])
    (first,) = await service.poll("q", limit=1, ttl=3600)
    (second,) = await service.poll("q", limit=1, ttl=3600)
    secrets = MessageIds(core_of(session))
    await secrets.rotate()
    newest = (await secrets.signer()).id
    assert newest not in first["id"]
    assert (await service.post("/queue/1/q/ack", json=[first["id"]])).status_code == 200
    await secrets.rotate()
    fresh = await start()
    assert (await fresh.post("/queue/1/q/ack", json=[second["id"]])).status_code == 400
    (third,) = await fresh.poll("q")
    assert (await service.post("/queue/1/q/ack", json=[third["id"]])).status_code == 200
    assert await session.queue("q").size() == 1


@pytest.mark.parametrize("when", ["lose_before", "lose_after"])
async def test_a_rotation_whose_request_or_reply_is_lost_keeps_the_ids_that_were_signed_before(
    zookeeper_proxy: ZooKeeperProxy, queue_root: str, when: str
) -> None:
    async with zq.connect(zookeeper_proxy.hosts, root=queue_root, session_timeout=20) as session:
        secrets = MessageIds(core_of(session))
        earlier = (await secrets.signer()).message_id("q", "items/item-i7-0000000001")
        fault = getattr(zookeeper_proxy, when)(multi_of(b"/.tokens"))
        await secrets.rotate()
        assert len(fault.requests) == 1
        assert await secrets.lease_tokens("q", [earlier])
        assert (await secrets.signer()).id not in earlier


async def test_no_traceback_shows_a_stored_secret(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    ids = MessageIds(core_of(session))
    await ids.signer()
    await server_view.set(f"{queue_root}/.tokens", b'{"secrets": [{"id": "0", "secret": "5ec4e7"}]}')
    with pytest.raises(zq.PayloadError, match="do not decode") as refused:
        await MessageIds(core_of(session)).signer()
    assert "5ec4e7" not in "".join(traceback.format_exception(refused.value))
