"""Log records have the queue, the message and the transaction as attributes, for JSON formatters."""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING, Any

import pytest
from kazoo.security import make_digest_acl

import aiozkqueue as zq
from aiozkqueue.session.internals import work_of
from tests.integration.queue.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from aiozkqueue.listeners import Batch
    from tests.observer import Observer

STANDARD = set(vars(logging.makeLogRecord({})))


class Json(logging.Formatter):
    """Formats as common JSON formatters do: the attributes from `extra` become fields."""

    def format(self, record: logging.LogRecord) -> str:
        extra = {name: value for name, value in vars(record).items() if name not in STANDARD}
        return json.dumps({"level": record.levelname, "message": record.getMessage(), **extra})


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(Json())
        self.written: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.written.append(json.loads(self.format(record)))


@pytest.fixture
def lines() -> Iterator[Lines]:
    lines, logger = Lines(), logging.getLogger("aiozkqueue")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(lines)
    yield lines
    logger.removeHandler(lines)
    logger.setLevel(level)


async def test_a_handler_that_fails_is_logged_with_its_queue_message_and_transaction(
    session: zq.QueueSession, lines: Lines
) -> None:
    jobs = session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(0)))
    transactions: list[str] = []

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        transactions.append(work_of(delivery).id)
        if delivery.attempt == 1:
            raise RuntimeError("no secret of ours")

    async def done() -> bool:
        return await jobs.size() == 0

    message_id = await jobs.put(b"the payload")
    async with session.listener(jobs, handler):
        await eventually(done, 30)
    [line] = [line for line in lines.written if "handler failed" in line["message"]]
    assert line == {
        "level": "WARNING",
        "message": f"queue jobs: handler failed on message {message_id}, attempt 1: again at once",
        "queue": "jobs",
        "message_id": message_id,
        "attempt": 1,
        "transaction_id": transactions[0],
    }


@pytest.mark.parametrize(
    ("policy", "consequence"),
    [
        (zq.AtLeastOnce(backoff=zq.Fixed(90)), "again after 90 s"),
        (zq.ConsumeTimes(2, backoff=zq.Fixed(90)), "again after 90 s"),
        (zq.ConsumeTimes(1), "a dead letter"),
        (zq.ConsumeOnce(exhausted="drop"), "dropped"),
    ],
    ids=repr,
)
async def test_the_log_line_of_a_failure_says_what_happens_next(
    session: zq.QueueSession, lines: Lines, policy: zq.Policy, consequence: str
) -> None:
    jobs = session.queue("jobs", policy=policy)

    async def handler(_: zq.Delivery[bytes]) -> None:
        raise RuntimeError("no secret of ours")

    async def logged() -> bool:
        return any("handler failed" in line["message"] for line in lines.written)

    message_id = await jobs.put(b"the payload")
    async with session.listener(jobs, handler):
        await eventually(logged, 30)
    [line] = [line for line in lines.written if "handler failed" in line["message"]]
    assert line["message"] == f"queue jobs: handler failed on message {message_id}, attempt 1: {consequence}"


async def test_the_logged_delay_is_the_actual_random_delay(session: zq.QueueSession, lines: Lines) -> None:
    jobs = session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Exponential(100_000, maximum=100_000, jitter=1)))
    failed: list[float] = []

    async def handler(_: zq.Delivery[bytes]) -> None:
        failed.append(time.time())
        raise RuntimeError("no secret of ours")

    async def given_back() -> bool:
        return (await jobs.stats()).retrying == 1

    await jobs.put(b"the payload")
    async with session.listener(jobs, handler):
        await eventually(given_back, 30)
    [line] = [line for line in lines.written if "handler failed" in line["message"]]
    logged_delay = float(line["message"].removesuffix(" s").rpartition(" ")[2])
    (retrying,) = await jobs.peek()
    assert retrying.due is not None
    assert (
        abs(retrying.due.timestamp() - failed[0] - logged_delay) < 60
    )  # another random delay would be that close once in 800 times


async def test_a_failure_of_a_handler_that_has_settled_is_logged_as_such(
    session: zq.QueueSession, lines: Lines
) -> None:
    jobs = session.queue("jobs")

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        await delivery.commit()
        raise RuntimeError("no secret of ours")

    async def logged() -> bool:
        return any("handler failed" in line["message"] for line in lines.written)

    message_id = await jobs.put(b"the payload")
    async with session.listener(jobs, handler):
        await eventually(logged, 30)
    [line] = [line for line in lines.written if "handler failed" in line["message"]]
    assert line["message"].endswith(f"{message_id}, attempt 1: it is already committed")


async def test_no_delay_is_logged_for_a_handler_whose_claim_was_lost(
    session: zq.QueueSession, lines: Lines, expire: Callable[[zq.QueueSession], Awaitable[None]]
) -> None:
    jobs = session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(90)))

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        if not expired:
            expired.append(delivery.id)
            await expire(session)
            raise RuntimeError("no secret of ours")

    async def done() -> bool:
        return await jobs.size() == 0

    expired: list[str] = []
    message_id = await jobs.put(b"the payload")
    async with session.listener(jobs, handler):
        await eventually(done, 30)  # it was redelivered at once
    [line] = [line for line in lines.written if "handler failed" in line["message"]]
    assert line["message"].endswith(f"{message_id}, attempt 1: not released, because its claim is lost")


@pytest.mark.parametrize("handled", ["one by one", "in a batch that raises", "in a batch that fails the message"])
async def test_the_traceback_of_the_last_attempt_is_logged_once_with_the_dead_letter(
    session: zq.QueueSession, caplog: pytest.LogCaptureFixture, handled: str
) -> None:
    jobs = session.queue("jobs", policy=zq.ConsumeTimes(2, backoff=zq.Fixed(0)))

    async def handler(_: zq.Delivery[bytes]) -> None:
        raise RuntimeError("no secret of ours")

    async def batch_handler(batch: Batch[bytes]) -> None:
        if "raises" in handled:
            raise RuntimeError("no secret of ours")
        batch.fail(batch[0], RuntimeError("no secret of ours"))

    async def dead() -> bool:
        return await jobs.dead_letters.size() == 1

    await jobs.put(b"the payload")
    listener = session.listener(jobs, batch_handler, batch=5) if "batch" in handled else session.listener(jobs, handler)
    async with listener:
        await eventually(dead)
    shown = [(record.levelname, record.exc_info is not None) for record in caplog.records]
    assert shown == [("WARNING", True), ("WARNING", False), ("ERROR", True)]


async def test_the_traceback_of_a_last_attempt_that_is_not_settled_is_logged_nevertheless(
    session: zq.QueueSession, caplog: pytest.LogCaptureFixture, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs", policy=zq.ConsumeTimes(1))

    async def handler(_: zq.Delivery[bytes]) -> None:
        (lock,) = await server_view.children(f"{queue_root}/jobs/locks")
        await server_view.delete(f"{queue_root}/jobs/locks/{lock}")  # released by force
        raise RuntimeError("no secret of ours")

    async def traced() -> bool:
        return any(record.exc_info is not None for record in caplog.records)

    await jobs.put(b"the payload")
    async with session.listener(jobs, handler):
        await eventually(traced)
    (record,) = [record for record in caplog.records if record.exc_info is not None]
    assert "could not be given up after its last attempt" in record.getMessage()


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"1", r"is a dead letter: 'no such order\nERROR the disk is full'"),
        (b"2", "is a dead letter: 'delivered 1 of 1 times without success; last error: OSError: the mail is down"),
        (b"no number", "is a dead letter: \"payload on queue 'jobs' does not decode: "),
    ],
)
async def test_a_dead_letter_is_logged_with_its_reason(
    session: zq.QueueSession, lines: Lines, body: bytes, text: str
) -> None:
    await session.queue("jobs").configure(zq.QueueConfig(policy=zq.ConsumeTimes(1)))
    message_id = await session.queue("jobs").put(body)

    async def handler(delivery: zq.Delivery[int]) -> None:
        raise zq.Reject("no such order\nERROR the disk is full") if delivery.value == 1 else OSError("the mail is down")

    async def dead() -> bool:
        return await session.queue("jobs").dead_letters.size() == 1

    async with session.listener(session.queue("jobs", int), handler):
        await eventually(dead)
    [line] = [line for line in lines.written if "is a dead letter" in line["message"]]
    assert line["message"].startswith(f"queue jobs: message {message_id} {text}")
    assert (line["level"], line["queue"], line["message_id"], line["attempt"]) == ("ERROR", "jobs", message_id, 1)
    assert line["transaction_id"]


async def test_no_traceback_shows_a_payload_that_does_not_decode(
    session: zq.QueueSession, caplog: pytest.LogCaptureFixture
) -> None:
    await session.queue("jobs").put(b"the payload")

    async def handler(_: zq.Delivery[int]) -> None:
        pass

    async def dead() -> bool:
        return await session.queue("jobs").dead_letters.size() == 1

    async with session.listener(session.queue("jobs", int), handler):
        await eventually(dead)
    assert "PayloadError: payload on queue 'jobs' does not decode" in caplog.text
    assert "the payload" not in caplog.text


async def test_a_message_that_is_dropped_is_logged(session: zq.QueueSession, lines: Lines) -> None:
    jobs = session.queue("jobs", policy=zq.ConsumeOnce(exhausted="drop"))
    message_id = await jobs.put(b"1")
    async with jobs.consume(until_idle=0) as deliveries:
        async for delivery in deliveries:
            await delivery.rollback()
    assert [line["message"] for line in lines.written if "dropped" in line["message"]] == [
        (
            f"queue jobs: message {message_id} is dropped: 'delivered 1 of 1 times without success; "
            "no consumer reported an error'"
        )
    ]


async def test_a_redelivered_message_is_logged_with_its_ids(session: zq.QueueSession, lines: Lines) -> None:
    jobs = session.queue("jobs")
    stolen: list[str] = []

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        if not stolen:
            stolen.append(work_of(delivery).id)
            await jobs.admin.release_claims()

    async def done() -> bool:
        return await jobs.size() == 0

    message_id = await jobs.put(b"1")
    async with session.listener(jobs, handler):
        await eventually(done, 30)
    [line] = [line for line in lines.written if "is not committed" in line["message"]]
    assert (line["queue"], line["message_id"], line["transaction_id"]) == ("jobs", message_id, stolen[0])


@pytest.mark.parametrize("behind", ["denied too", "forced open"])
async def test_the_first_failed_commit_of_a_loop_ends_it_and_the_next_is_logged(
    session: zq.QueueSession, lines: Lines, server_view: Observer, queue_root: str, behind: str
) -> None:
    jobs, closed = session.queue("jobs"), session.queue("closed")
    await closed.put(b"it is known to be there")
    acl = [make_digest_acl("somebody", "else", all=True)]
    await server_view.set_acl(f"{queue_root}/closed/items", acl)
    ids = await jobs.put_many([b"1", b"2", b"3"])
    shown: list[zq.Delivery[bytes]] = []

    async def refused() -> bool:
        return shown[0].outcome is zq.Outcome.ROLLED_BACK

    with pytest.raises(zq.AccessDeniedError, match="'closed'"):
        async with jobs.consume() as deliveries:
            async for delivery in deliveries:
                shown.append(delivery)
                if len(shown) == 1 or behind == "denied too":
                    delivery.put("closed", b"result")
                if len(shown) == 2:
                    await eventually(refused)
                    if behind == "forced open":
                        await jobs.admin.release_claims()
    assert [delivery.id for delivery in shown] == ids[:2]
    [line] = [line for line in lines.written if line.get("message_id") == ids[1]]
    assert (line["queue"], line["transaction_id"]) == ("jobs", work_of(shown[1]).id)
    if behind == "forced open":
        assert f"{ids[1]} is not committed: message {ids[1]}" in line["message"]
    else:
        assert (line["level"], line["message"]) == ("ERROR", f"queue jobs: message {ids[1]} could not be settled")
