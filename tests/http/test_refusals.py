"""EmoDB's contract over a real socket: refused requests, their responses, and the order of the checks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from aiozkqueue.http import Keys
from aiozkqueue.session.internals import core_of

if TYPE_CHECKING:
    import aiozkqueue as zq
    from tests.http.conftest import Service

pytestmark = pytest.mark.timeout(180)

OK = {"success": True}
ILLEGAL = "java.lang.IllegalArgumentException"
UNAUTHORIZED = "com.bazaarvoice.emodb.common.api.UnauthorizedException"
UNKNOWN_MOVE = "com.bazaarvoice.emodb.queue.api.UnknownMoveException"
JSON = {"Content-Type": "application/json"}
kinds = pytest.mark.parametrize("kind", ["queue", "dedupq"])


def payloads(messages: list[dict[str, Any]]) -> list[Any]:
    return [message["payload"] for message in messages]


def reason_of_python(text: str) -> str:
    """Return the reason for which this version of Python refuses a text as JSON."""
    with pytest.raises(json.JSONDecodeError) as refused:
        json.loads(text)
    return str(refused.value)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("9" * 5000, "an integer has more than 4300 digits"),
        ("-" + "9" * 5000, "an integer has more than 4300 digits"),
        ("1e400", "a number is too large"),
        ("-1e400", "a number is too large"),
        ('"\\ud800"', "a string contains half of a surrogate pair"),
        ('{"a\\udfff": 1}', "a string contains half of a surrogate pair"),
        ("NaN", "NaN is not JSON"),
        ("-Infinity", "-Infinity is not JSON"),
        ("[1,]", reason_of_python("[1,]")),
    ],
)
@pytest.mark.parametrize("path", ["send", "sendbatch"])
async def test_the_reason_for_refusing_a_value_concerns_the_value(
    service: Service, path: str, body: str, reason: str
) -> None:
    content = body if path == "send" else f"[{body}]"
    answer = await service.http.post(f"/queue/1/q/{path}", content=content, headers=JSON)
    assert (answer.status_code, answer.json()) == (400, {"message": f"Unable to process JSON: {reason}"})
    assert (await service.http.get("/queue/1/q/size")).json() == 0


@pytest.mark.parametrize(
    ("method", "path", "parameter"),
    [
        ("GET", "poll", "ttl"),
        ("GET", "poll", "limit"),
        ("GET", "peek", "limit"),
        ("GET", "size", "limit"),
        ("POST", "renew", "ttl"),
    ],
)
async def test_a_parameter_that_is_not_an_integer_is_refused(
    service: Service, method: str, path: str, parameter: str
) -> None:
    body: list[str] | None = [] if method == "POST" else None
    for text in ("abc", "", "1.5", "1e3", " 1", "0x1", "٣", "9" * 30):
        answer = await service.http.request(method, f"/queue/1/q/{path}", params={parameter: text}, json=body)
        assert (answer.status_code, answer.text) == (400, f'"{text}" is not a number.')
        assert answer.headers["content-type"].startswith("text/plain")
        assert "X-BV-Exception" not in answer.headers


@pytest.mark.parametrize(
    ("method", "path", "parameters", "message"),
    [
        ("GET", "poll", {"ttl": -1}, "ClaimTtl must be >=0"),
        ("GET", "poll", {"ttl": 3601}, "ClaimTtl must be <=1 hour"),
        ("GET", "poll", {"limit": 0}, "Limit must be >0"),
        ("GET", "poll", {"limit": 1001}, "Limit must be <=1000"),
        ("GET", "poll", {"limit": 2**63 - 1}, "Limit must be <=1000"),
        ("GET", "peek", {"limit": -1}, "Limit must be >0"),
        ("GET", "peek", {"limit": 1001}, "Limit must be <=1000"),
        ("GET", "size", {"limit": 0}, "Limit must be >0"),
        ("POST", "renew", {"ttl": -1}, "ClaimTtl must be >=0"),
        ("POST", "renew", {"ttl": 3601}, "ClaimTtl must be <=1 hour"),
        ("POST", "/queue/1/_move", {"from": "same", "to": "same"}, "cannot move queue to itself"),
    ],
)
async def test_a_parameter_out_of_range_is_refused(
    service: Service, method: str, path: str, parameters: dict[str, Any], message: str
) -> None:
    body: list[str] | None = [] if path == "renew" else None
    path = path if path.startswith("/") else f"/queue/1/q/{path}"
    answer = await service.http.request(method, path, params=parameters, json=body)
    assert (answer.status_code, answer.text) == (400, message)
    assert answer.headers["X-BV-Exception"] == ILLEGAL
    assert answer.headers["content-type"].startswith("text/plain")


@pytest.mark.parametrize(
    ("method", "path", "content"),
    [
        ("POST", "/send", b"1"),
        ("POST", "/sendbatch", b"[1]"),
        ("GET", "/poll", None),
        ("GET", "/peek", None),
        ("POST", "/ack", b"[]"),
        ("POST", "/renew", b"[]"),
        ("GET", "/size", None),
        ("GET", "/claimcount", None),
        ("POST", "/unclaimall", None),
        ("DELETE", "", None),
    ],
)
async def test_an_invalid_queue_name_is_refused(
    service: Service, method: str, path: str, content: bytes | None
) -> None:
    for name in ("Upper", "a b", "_one", "%2e", "%2e%2e", "a*", "é", "a" * 256, "a%7Cb", "a%2Fb"):
        answer = await service.http.request(method, f"/queue/1/{name}{path}", content=content, headers=JSON)
        assert answer.status_code == 400, (name, answer.text)
        assert answer.headers["X-BV-Exception"] == ILLEGAL, name
        assert answer.text.startswith("Queue name must be a lowercase ASCII string between 1 and 255"), name


@pytest.mark.parametrize("name", ["a", "__", "__a", "a.b", ".a", "-", "a" * 255, "0", "a:b@c_d-e"])
@kinds
async def test_every_valid_queue_name_is_accepted(service: Service, kind: str, name: str) -> None:
    assert (await service.post(f"/{kind}/1/{name}/send", json=1)).json() == OK
    assert payloads((await service.get(f"/{kind}/1/{name}/poll")).json()) == [1]


async def test_a_message_can_take_up_to_30720_stored_bytes(service: Service) -> None:
    assert (await service.post("/queue/1/q/send", json="x" * 30_718)).json() == OK
    padded = b' [ "' + b"x" * 30_714 + b'" , 1 ] '  # 30,720 bytes without the blanks
    assert (await service.post("/queue/1/q/send", content=padded, headers=JSON)).json() == OK
    for path, body in (
        ("q/send", "x" * 30_719),
        ("q/sendbatch", [1, "x" * 30_719]),
        ("_sendbatch", {"q": ["x" * 30_719]}),
    ):
        answer = await service.post(f"/queue/1/{path}", json=body)
        message = "Message size (30721) is greater than the maximum allowed (30720) message size"
        assert (answer.status_code, answer.text) == (400, message)
        assert answer.headers["X-BV-Exception"] == ILLEGAL
    assert (await service.get("/queue/1/q/size")).json() == 2


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("q/send", b"{"),
        ("q/send", b"nonsense"),
        ("q/send", b"NaN"),
        ("q/send", b"\xff"),
        ("q/send", b"1 2"),
        ("q/send", b'"\\ud800"'),
        ("q/send", b"1e999"),
        ("q/send", b"[" * 401 + b"]" * 401),
        ("q/send", b"[" * 1_000_000),
        ("q/send", b"1" * 5000),
        ("q/sendbatch", b"{}"),
        ("q/sendbatch", b"1"),
        ("_sendbatch", b"[]"),
        ("_sendbatch", b'{"q": 1}'),
        ("q/ack", b'{"id": 1}'),
        ("q/ack", b"[1]"),
        ("q/ack", b"[null]"),
        ("q/renew", b'"id"'),
    ],
)
async def test_malformed_json_and_wrong_shapes_are_refused(service: Service, path: str, content: bytes) -> None:
    answer = await service.post(f"/queue/1/{path}", content=content, headers=JSON)
    assert answer.status_code == 400
    assert isinstance(answer.json()["message"], str)
    assert (await service.get("/queue/1/q/size")).json() == 0


@pytest.mark.parametrize("path", ["q/send", "q/sendbatch", "_sendbatch", "q/ack", "q/renew"])
async def test_an_empty_body_is_refused(service: Service, path: str) -> None:
    answer = await service.post(f"/queue/1/{path}", headers=JSON)
    assert (answer.status_code, answer.json()) == (422, {"errors": []})


@pytest.mark.parametrize("path", ["q/send", "q/sendbatch", "_sendbatch", "q/ack", "q/renew"])
@pytest.mark.parametrize("headers", [{}, {"Content-Type": "text/plain"}, {"Content-Type": "application/jsonx"}])
async def test_a_body_without_a_json_content_type_is_refused(
    service: Service, path: str, headers: dict[str, str]
) -> None:
    assert (await service.post(f"/queue/1/{path}", content=b"1", headers=headers)).status_code == 415


@pytest.mark.parametrize("media", ["application/json; charset=utf-8", "Application/JSON"])
async def test_every_json_content_type_is_accepted(service: Service, media: str) -> None:
    assert (await service.post("/queue/1/q/send", content=b"1", headers={"Content-Type": media})).json() == OK


@pytest.mark.parametrize(
    ("method", "path", "verb"),
    [
        ("POST", "q/send", "post"),
        ("POST", "q/sendbatch", "post"),
        ("GET", "q/poll", "poll"),
        ("GET", "q/peek", "poll"),
        ("POST", "q/ack", "poll"),
        ("POST", "q/renew", "poll"),
        ("GET", "q/size", "get_status"),
        ("GET", "q/claimcount", "get_status"),
        ("POST", "q/unclaimall", "poll"),
        ("DELETE", "q", "poll"),
        ("POST", "_move?from=q&to=other", "poll"),
        ("POST", "_move?from=other&to=q", "post"),
    ],
)
async def test_a_request_without_the_right_key_reads_and_changes_nothing(
    service: Service, session: zq.QueueSession, method: str, path: str, verb: str
) -> None:
    every = {"post", "poll", "get_status", "purge", "manage"}
    allow = ["queue|*|other", *(f"queue|{other}|q" for other in every - {verb})]
    wrong = await Keys(core_of(session)).create("wrong", allow)
    for key in (None, "nobodys", "", wrong):
        headers = {**JSON, **({} if key is None else {"X-BV-API-Key": key})}
        service.http.headers.pop("X-BV-API-Key", None)
        answer = await service.http.request(method, f"/queue/1/{path}", headers=headers)
        assert (answer.status_code, answer.json()) == (403, {"reason": "not authorized"}), key
        assert answer.headers["X-BV-Exception"] == UNAUTHORIZED
        assert "WWW-Authenticate" not in answer.headers
    right = await Keys(core_of(session)).create("right", [f"queue|{verb}|q", "queue|*|other"])
    allowed = await service.http.request(method, f"/queue/1/{path}", headers={**JSON, "X-BV-API-Key": right})
    assert allowed.status_code != 403


async def test_a_batch_with_a_forbidden_queue_is_refused_as_a_whole(service: Service, session: zq.QueueSession) -> None:
    key = await Keys(core_of(session)).create("orders", ["queue|post|orders*"])
    batches = {"orders-1": [1], "secret": [2]}
    answer = await service.post("/queue/1/_sendbatch", json=batches, headers={"X-BV-API-Key": key})
    assert (answer.status_code, answer.json()) == (403, {"queue": "secret"})
    assert (await service.get("/queue/1/orders-1/size")).json() == 0


@kinds
async def test_an_unknown_move_or_one_of_the_other_service_is_not_found(service: Service, kind: str) -> None:
    other = {"queue": "dedupq", "dedupq": "queue"}[kind]
    foreign = (await service.post(f"/{other}/1/_move", params={"from": "a", "to": "b"})).json()["id"]
    for reference in (foreign, "nonsense", f"{kind}-", f"{kind}-nonsense", "..%00", "%C3%A9"):
        answer = await service.get(f"/{kind}/1/_move/{reference}")
        shown = {"..%00": "..\0", "%C3%A9": "é"}.get(reference, reference)
        assert answer.status_code == 404
        assert answer.json() == {"id": shown, "message": f"Unknown move: {shown}", "suppressed": []}
        assert answer.headers["X-BV-Exception"] == UNKNOWN_MOVE


@pytest.mark.parametrize("parameters", [{}, {"from": "a"}, {"to": "a"}, {"from": "", "to": "a"}])
async def test_a_move_needs_a_source_and_a_destination(service: Service, parameters: dict[str, str]) -> None:
    assert (await service.post("/queue/1/_move", params=parameters)).status_code == 400


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/queue/1", 404),
        ("GET", "/queue/1/q/nothing", 404),
        ("GET", "/queue/2/q/size", 404),
        ("POST", "/queue/1/q/size", 405),
        ("GET", "/queue/1/q/send", 405),
    ],
)
async def test_an_unknown_route_is_refused_before_any_other_check(
    service: Service, method: str, path: str, status: int
) -> None:
    service.http.headers.pop("X-BV-API-Key")
    assert (await service.http.request(method, path)).status_code == status


async def test_a_request_is_checked_by_type_then_key_then_body_then_range(service: Service) -> None:
    async def asked(path: str, content: bytes, media: str = "application/json", key: str = service.key) -> int:
        headers = {"Content-Type": media, "X-BV-API-Key": key}
        return (await service.post(f"/queue/1/{path}", content=content, headers=headers)).status_code

    assert await asked("UPPER/send", b"{", "text/plain", "nobodys") == 415
    assert await asked("UPPER/send", b"{", key="nobodys") == 403
    assert await asked("UPPER/send", b"") == 422
    unclean = await service.post("/queue/1/UPPER/renew?ttl=x", content=b"{", headers=JSON)
    assert unclean.text == '"x" is not a number.'
    malformed = await service.post("/queue/1/UPPER/renew?ttl=-1", content=b"{", headers=JSON)
    assert "Unable to process JSON" in malformed.json()["message"]
    named = await service.post("/queue/1/UPPER/renew?ttl=5", content=b"[]", headers=JSON)
    assert named.text.startswith("Queue name")
