"""Errors over HTTP and on the dashboard name remedies that need no Python."""

from __future__ import annotations

import ast
import re
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import aiozkqueue as zq
from aiozkqueue.http.core.remedies import text_of
from aiozkqueue.zookeeper import NoAuthError
from tests.http.conftest import proof_in
from tests.http.test_dashboard import browser
from tests.integration.queue.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from tests.http.conftest import Service

__all__ = ["browser"]

PACKAGE = Path(zq.__file__).parent
#: The modules whose errors a request or a page may show, and the errors that it shows.
SHOWN = (
    "queue/**/*.py",
    "operations/*.py",
    "layout/*.py",
    "session/leases.py",
    "runtime/sizes.py",
    "sampling.py",
    "zookeeper/call_limit.py",
)
ERRORS = {
    "AccessDeniedError",
    "ConfigConflictError",
    "ConflictError",
    "DuplicateKeyError",
    "ItemNotEmptyError",
    "MalformedError",
    "MessageTooLargeError",
    "NotCommittedError",
    "NotRedrivenError",
    "OutcomeUnknownError",
    "PartlyDeniedError",
    "PayloadError",
    "QueueFullError",
    "QueueInUseError",
    "TransactionTooLargeError",
    "UnreadableError",
}
#: Modules with errors about options that depend on stored messages, so that a page may show them.
OPTIONS = {"config_rules.py", "converted.py", "groups.py"}
#: The beginnings of errors about arguments that neither the service nor the dashboard passes.
NOT_PASSED = ("queue x has the policy ",)
#: Python in a text: an argument, a call, or a statement.
PYTHON = re.compile(r"""\w+=(?:True|False|None|["'])|\b[a-z_]+=(?=[ ,;)]|$)|\w\(\)|\.\w+\(|\bawait\b|longer timeout""")


def texts() -> Iterator[tuple[str, str]]:
    """Yield the texts of these errors, with the file of each; what they insert is an x."""
    for path in sorted(path for pattern in SHOWN for path in PACKAGE.glob(pattern)):
        wanted = ERRORS | ({"InvalidOptionError"} if path.name in OPTIONS else set())
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            assigned = [node for node in ast.walk(function) if isinstance(node, ast.Assign)]
            for call in ast.walk(function):
                if (
                    isinstance(call, ast.Call)
                    and isinstance(call.func, ast.Name)
                    and call.func.id in wanted
                    and call.args
                ):
                    argument = call.args[0]
                    values = [
                        node.value
                        for node in assigned
                        if isinstance(argument, ast.Name) and ast.unparse(node.targets[0]) == argument.id
                    ]
                    for value in values or [argument]:
                        yield from ((path.name, text) for text in texts_in(value))


def texts_in(value: ast.expr) -> list[str]:
    """Return the texts that an expression may have; none if it is no text in the source."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return [value.value]
    if isinstance(value, ast.IfExp):
        return [*texts_in(value.body), *texts_in(value.orelse)]
    if isinstance(value, ast.JoinedStr):
        return ["".join(parts) for parts in product(*map(inserted, value.values))]
    return []


def inserted(part: ast.expr) -> list[str]:
    return (texts_in(part.value) or ["x"]) if isinstance(part, ast.FormattedValue) else texts_in(part)


def test_no_error_that_a_request_or_a_page_shows_has_a_remedy_in_python() -> None:
    found = list(texts())
    assert len(found) > 100
    assert any("force=True" in text for _, text in found), "the texts of the package are read"
    shown = [(name, text_of(text)) for name, text in found if not text.startswith(NOT_PASSED)]
    denials: list[type[NoAuthError]] = [NoAuthError, *NoAuthError.__subclasses__()]
    shown += [("advice", text_of(denial.advice)) for denial in denials]
    assert [(name, text) for name, text in shown if PYTHON.search(text)] == []


async def test_a_message_for_a_full_queue_is_refused_with_a_remedy_for_clients_of_http(
    service: Service, session: zq.QueueSession
) -> None:
    await session.queue("narrow").configure(zq.QueueConfig(max_size=1))
    await session.queue("narrow").put(b"1")
    refused = await service.post("/queue/1/narrow/send", json=2)
    assert refused.status_code == 503
    text = "queue 'narrow' is full (max_size 1); the message was not stored; put it again when messages have been taken"
    assert refused.json() == {"message": text}


async def test_an_ordered_queue_is_no_queue_without_duplicates_over_http(
    service: Service, session: zq.QueueSession
) -> None:
    await session.queue("DEDUP:orders").configure(zq.QueueConfig(ordered=True))
    refused = await service.post("/dedupq/1/orders/send", json=1)
    assert refused.status_code == 409
    assert refused.json()["message"].endswith("; use another queue for ordered messages")


async def test_the_dashboard_shows_remedies_of_the_dashboard(
    browser: httpx.AsyncClient, session: zq.QueueSession
) -> None:
    orders, keyed = session.queue("orders"), session.queue("keyed")
    await keyed.put(b"1", key="k", unique=True)
    unique = await orders.put(b"1", key="k", unique=True)
    proof = proof_in(await browser.get("/queues/orders/messages"))
    form = {"proof": proof, "confirmed": "yes"}
    deleted = await browser.post("/queues/orders/actions", data={**form, "action": "delete-queue"})
    assert (deleted.status_code, "force=True" in deleted.text) == (409, False)
    assert "Stop its consumers and empty it first" in deleted.text
    one = {**form, "action": "move-one", "target": "keyed", "id": unique}
    moved = await browser.post("/queues/orders/actions", data=one)
    assert (moved.status_code, "unique=" in moved.text) == (409, False)
    assert "cancel that message, or wait until it has ended" in moved.text
    reference = await session.admin.moves.start("orders", "keyed")

    async def has_failed() -> bool:
        return (await session.admin.moves.status(reference)).error is not None

    await eventually(has_failed, 30)

    async def is_shown() -> bool:
        page = await browser.get("/moves")
        assert "unique=" not in page.text
        return "already has this unique key" in page.text

    await eventually(is_shown, 30)
