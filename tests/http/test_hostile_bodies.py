"""No request body blocks the event loop: other requests are served while it is read and checked."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import time
import zlib
from typing import TYPE_CHECKING, Any

import pytest

from aiozkqueue.http import Settings
from aiozkqueue.http.core.limits import LoopShare
from tests.http.test_robustness import assert_still_serves, head, raw

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import aiozkqueue as zq
    from tests.http.conftest import Service, Starter

    Work = Callable[[], Awaitable[None]]

pytestmark = pytest.mark.timeout(240)

JSON = {"Content-Type": "application/json"}
KIB, MIB = 1024, 1024 * 1024
#: The maximum seconds of CPU in one turn of the loop. It is CPU time, because other processes delay this one.
MOST = 0.05
TRIES = 3


@pytest.fixture
async def service(start: Starter) -> Service:
    """A server that waits long for ZooKeeper, because these tests measure only the loop."""
    return await start(Settings(request_timeout=120))


async def do_nothing() -> None: ...


async def assert_never_blocked(work: Work, before: Work = do_nothing) -> None:
    """Assert that no turn of the loop is too long during the work of the server.

    A virtual machine may count a stall as CPU time of the current turn. So the test only fails if a turn is too long in
    each try, as it is if a parser blocks the loop.
    """
    turns: list[float] = []
    while not turns or (turns[-1] >= MOST and len(turns) < TRIES):
        await before()
        turns.append(await longest_turn(work))
    assert turns[-1] < MOST, f"one turn of the loop was too long in each try, ms of CPU: {[t * 1000 for t in turns]}"


async def longest_turn(work: Work) -> float:
    """Return the CPU seconds of the longest turn of the loop during the work.

    A turn lasts from one look of the loop at its sockets to the next. A task that ran in each turn would see the same
    turns, but keep the loop from waiting: the server leaves half of the time to other tasks.
    """
    longest = 0.0
    gc.collect()
    gc.freeze()  # as `aiozkqueue serve` does, because a test run has far more objects than a server
    selector: Any = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]  # of each loop on sockets
    select = selector.select
    begun = time.thread_time()

    def timed(timeout: float | None = None) -> object:
        nonlocal longest, begun
        longest = max(longest, time.thread_time() - begun)
        try:
            return select(timeout)
        finally:
            begun = time.thread_time()

    selector.select = timed
    try:
        await work()
        await asyncio.sleep(0)  # the last turn ends
    finally:
        selector.select = select
        gc.unfreeze()
    return longest


async def ask(service: Service, path: str, body: bytes, **headers: str) -> tuple[int, bytes]:
    """Send a body in small pieces, as a network does; return the status and the headers of the response."""
    async with raw(service) as (reader, writer), asyncio.timeout(120):
        writer.write(head(service, f"POST /queue/1/{path}", **{"Content-Length": str(len(body)), **headers}))

        async def send() -> None:
            view = memoryview(body)
            try:
                for start in range(0, len(view), 32 * KIB):
                    writer.write(view[start : start + 32 * KIB])
                    await writer.drain()
            except ConnectionError:
                pass  # the server has responded and closed the connection

        sending = asyncio.create_task(send())
        try:
            status = int((await reader.readline()).split()[1])
            headers_of_response = await reader.readuntil(b"\r\n\r\n")
        finally:
            sending.cancel()
            await asyncio.wait([sending])
        return status, headers_of_response


HOSTILE: dict[str, Callable[[int], bytes]] = {
    "brackets": lambda size: b"[" * size,
    "empty arrays": lambda size: b"[" + b"[]," * (size // 3 - 1) + b"0]",
    "nested pairs": lambda size: (b"[" * 300 + b"]" * 300 + b",") * (size // 601),
    "one name": lambda size: b"{" + b'"0":0,' * (size // 6 - 1) + b'"0":0}',
    "names": lambda size: b"{" + b",".join(b'"%07d":0' % number for number in range(size // 12)) + b"}",
    "quotes": lambda size: b'["' + b'\\"' * (size // 2 - 2) + b'"]',
    "backslashes": lambda size: b'["' + b"\\\\" * (size // 2 - 2) + b'"]',
    "empty strings": lambda size: b"[" + b'"",' * (size // 3 - 1) + b"0]",
    "numbers": lambda size: b"[" + b"1e-300," * (size // 7 - 1) + b"0]",
    "digits": lambda size: b"[" + b"9" * (size - 2) + b"]",
    "objects": lambda size: b"[" + b'{"a":{}},' * (size // 9 - 1) + b"0]",
    "an array in an array": lambda size: b"[[" + b"0," * (size // 2 - 2) + b"0]]",
    "an array of a name": lambda size: b'{"a":[[' + b"0," * (size // 2 - 5) + b"0]]}",
    "blanks": lambda size: b"[" + b" " * (size - 2) + b"]",
    "not text": lambda size: b"\xff" * size,
    "two bytes a character": lambda size: "[],".encode("utf-16-le") * (size // 6),
}
#: Each of these takes half a minute, and is parsed in the same way as "empty arrays".
LONGEST = {"empty strings", "numbers", "objects"}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if kind in LONGEST else []) for kind in HOSTILE]
)
async def test_a_hostile_body_never_blocks_the_event_loop(service: Service, kind: str) -> None:
    bodies = [HOSTILE[kind](size) for size in (31 * KIB, 64 * KIB, 250 * KIB, 1000 * KIB, 8 * MIB)]

    async def send() -> None:
        for path in ("q/send", "q/sendbatch", "_sendbatch", "q/ack", "q/renew"):
            for body in bodies:
                status, _ = await ask(service, path, body)
                assert status in {200, 400, 413}

    await assert_never_blocked(send)
    await assert_still_serves(service)


@pytest.mark.parametrize(
    "kind", ["names", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("empty arrays", "numbers"))]
)
async def test_concurrent_hostile_bodies_never_block_the_event_loop(service: Service, kind: str) -> None:
    body = HOSTILE[kind](900 * KIB)

    async def send() -> None:
        answers = await asyncio.gather(*[ask(service, "q/sendbatch", body) for _ in range(8)])
        assert {status for status, _ in answers} <= {200, 400, 413}

    await assert_never_blocked(send)
    await assert_still_serves(service)


async def test_the_time_for_which_a_process_was_stopped_does_not_delay_bodies_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped = 0.0
    real = time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: real() + stopped)
    loop_share = LoopShare()
    async with asyncio.timeout(10):
        async with loop_share:
            stopped = 60.0


async def test_a_hundred_thousand_messages_never_block_the_event_loop(service: Service) -> None:
    body = json.dumps([{"order": number} for number in range(100_000)]).encode()
    sent = 0

    async def send() -> None:
        nonlocal sent
        assert (await ask(service, "q/sendbatch", body))[0] == 200
        sent += 100_000

    await assert_never_blocked(send)
    assert (await service.get("/queue/1/q/size")).json() == sent


@pytest.mark.parametrize(
    ("path", "limit"), [("q/send", MIB), ("q/ack", MIB), ("q/renew", MIB), ("q/sendbatch", 32 * MIB)]
)
async def test_a_request_over_its_size_limit_is_refused_before_its_body_arrives(
    service: Service, path: str, limit: int
) -> None:
    async with raw(service) as (reader, writer), asyncio.timeout(60):
        writer.write(head(service, f"POST /queue/1/{path}", **{"Content-Length": str(limit + 1)}))
        assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
        assert b"connection: close" in (await reader.readuntil(b"\r\n\r\n")).lower()


async def test_a_message_in_a_batch_has_the_limit_of_a_single_message(service: Service) -> None:
    assert (await ask(service, "q/sendbatch", b'["' + b"a" * (2 * MIB) + b'"]'))[0] == 413
    assert (await service.get("/queue/1/q/size")).json() == 0


# -- gzip, which EmoDB's clients use


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "GZIP"])
async def test_a_body_can_be_gzip(service: Service, encoding: str) -> None:
    headers = {**JSON, "Content-Encoding": encoding}
    body = gzip.compress(b'[{"a": "b"}, nu') + gzip.compress(b"ll]")  # two gzip members are one body
    assert (await service.post("/queue/1/q/sendbatch", content=body, headers=headers)).json() == {"success": True}
    polled = await service.poll("q")
    assert [message["payload"] for message in polled] == [{"a": "b"}, None]
    ids = gzip.compress(json.dumps([message["id"] for message in polled]).encode())
    assert (await service.post("/queue/1/q/ack", content=ids, headers=headers)).status_code == 200
    assert (await service.get("/queue/1/q/size")).json() == 0


async def test_the_identity_encoding_leaves_a_body_as_it_is(service: Service) -> None:
    headers = {**JSON, "Content-Encoding": "identity"}
    assert (await service.post("/queue/1/q/send", content=b"1", headers=headers)).status_code == 200


@pytest.mark.parametrize("encoding", ["br", "deflate", "zstd", "gzip, gzip", "nonsense"])
async def test_another_encoding_is_refused_as_an_unsupported_type(service: Service, encoding: str) -> None:
    answer = await service.post("/queue/1/q/send", content=b"1", headers={**JSON, "Content-Encoding": encoding})
    assert (answer.status_code, answer.headers["Accept-Encoding"]) == (415, "gzip")
    assert "gzip" in answer.json()["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"[1]",
        gzip.compress(b"[1]")[:-1],
        gzip.compress(b"[1]") + b"more",
        gzip.compress(b"[1]")[:-8] + b"\0" * 8,
        zlib.compress(b"[1]"),
        gzip.compress(b"[" * 1000),
        gzip.compress(b"x" * 40_000_000, 1),
    ],
    ids=["none", "cut off", "more behind", "wrong checksum", "zlib", "nested", "huge and no JSON"],
)
async def test_a_gzip_body_that_holds_no_json_is_refused(service: Service, body: bytes) -> None:
    for path in ("sendbatch", "send", "ack"):
        answer = await service.post(f"/queue/1/q/{path}", content=body, headers={**JSON, "Content-Encoding": "gzip"})
        assert answer.status_code in {400, 413}
        assert isinstance(answer.json()["message"], str)
    assert (await service.get("/queue/1/q/size")).json() == 0


async def test_an_empty_gzip_body_is_an_empty_body(service: Service) -> None:
    headers = {**JSON, "Content-Encoding": "gzip"}
    answer = await service.post("/queue/1/q/send", content=gzip.compress(b""), headers=headers)
    assert (answer.status_code, answer.json()) == (422, {"errors": []})


async def test_a_gzip_body_over_the_limit_is_refused_without_inflating_all_of_it(service: Service) -> None:
    bomb = gzip.compress(b'["' + b"a" * (512 * MIB) + b'"]', 1)
    bombs = gzip.compress(b"[" + b'"aaaaaaaaaaaaaaaaaaaaaaaaaaaa",' * (MIB) + b"1", 1)

    async def send() -> None:
        for path, body in (("q/send", bomb), ("q/sendbatch", bomb), ("q/sendbatch", bombs), ("q/ack", bombs)):
            status, _ = await ask(service, path, body, **{"Content-Encoding": "gzip"})
            assert status in {400, 413}

    await assert_never_blocked(send)
    await assert_still_serves(service)


# -- responses


@pytest.mark.parametrize(
    "payload",
    [pytest.param(b'"' + b"x" * 30_000 + b'"', marks=pytest.mark.slow), b"[" + b"[]," * 9_900 + b"0]"],
    ids=["text", "arrays"],
)
async def test_many_large_messages_never_block_the_event_loop(
    service: Service, session: zq.QueueSession, payload: bytes
) -> None:
    for path in ("poll?ttl=0&limit=1000", "peek?limit=1000", "poll?ttl=60&limit=1000"):

        async def read_all(path: str = path) -> None:
            async with raw(service) as (reader, writer), asyncio.timeout(120):
                writer.write(head(service, f"GET /queue/1/q/{path}", Connection="close"))
                read = 0
                while chunk := await reader.read(64 * KIB):
                    read += len(chunk)
            assert read > 1000 * len(payload)

        async def fill() -> None:
            """Replace the messages that the last poll has claimed."""
            waiting = (await session.queue("q").stats()).waiting
            await session.queue("q").put_many([payload] * (1000 - waiting))

        await assert_never_blocked(read_all, before=fill)


async def test_a_body_full_of_ids_never_blocks_the_event_loop(service: Service, session: zq.QueueSession) -> None:
    await session.queue("q").put_many([b"1"] * 1000)
    ids = [message["id"] for message in await service.poll("q", limit=1000, ttl=60)]
    body = json.dumps(ids * (1000 * KIB // len(json.dumps(ids)))).encode()

    async def send() -> None:
        for path in ("q/renew?ttl=60", "q/ack"):
            status, _ = await ask(service, path, body)
            assert status in {200, 413}

    await assert_never_blocked(send)
