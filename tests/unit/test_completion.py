"""The public objects show the names that users need, and no names of the package's internal layers."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.layout import StoredConfig
from aiozkqueue.listeners import Batch
from aiozkqueue.session.internals import work_of
from aiozkqueue.testing import run_virtual, simulated
from docsite.public import INTERNAL, documented

if TYPE_CHECKING:
    from collections.abc import Mapping

MESSAGE = {
    "attempt", "body", "due", "enqueued_at", "error", "group", "headers", "id", "key", "priority", "queue",
    "tags", "value",
}  # fmt: skip
CONFIG = {
    "affinity", "bundle", "clean_every", "collapse", "expired", "history", "max_size", "ordered", "paused", "policy",
    "reap_after", "reap_every", "reap_limit", "shards", "ttl",
}  # fmt: skip
SHOWN: dict[str, set[str]] = {
    "Queue": {
        "admin", "call", "cancel", "claimed", "configuration", "configure", "consume", "dead_letters", "exists",
        "history", "leases", "name", "peek", "purge", "put", "put_many", "size", "state", "stats", "update",
    },
    "QueueSession": {
        "admin", "connected", "curator_queue", "curator_shards", "kazoo_queue", "listener", "on_connection_state",
        "outcome", "queue", "queues", "transaction",
    },
    "Transaction": {
        "cancel", "commit", "id", "outcome", "put", "reject", "release", "rollback", "take", "take_many", "update",
    },
    "Delivery": MESSAGE | {"commit", "lost", "outcome", "put", "reject", "reply", "rollback"},
    "Message": MESSAGE,
    "QueueConfig": CONFIG,
    "QueueAdmin": {
        "consumers", "delete", "discard_unfinished", "ledgers", "pins", "reap", "release_claims", "release_ledger",
        "unbundle", "unfinished", "unpin",
    },
    "SessionAdmin": {"clean", "diagnose", "moves"},
    "Consumer": {"aclose", "stop"},
    "Batch": {"count", "fail", "index", "lost", "put", "queue"},
    "Listener": {"abort", "run", "stop"},
    "DeadLetters": {"peek", "purge", "redrive", "size"},
    "Leases": {"acknowledge", "release", "renew", "take"},
}  # fmt: skip


async def _shown() -> dict[str, set[str]]:
    """Return the names that each object offers for completion."""

    async def ignore(delivery: zq.Delivery[bytes]) -> None:
        del delivery

    async with simulated() as cluster, cluster.connect() as session:
        jobs = session.queue("jobs")
        await jobs.put_many([b"a", b"b"])
        consumer = jobs.consume()
        async with session.transaction() as tx, consumer as deliveries:
            message = await tx.take(jobs)
            delivery = await anext(aiter(deliveries))
            listener = session.listener(jobs, ignore)
            listener.stop()  # the coroutine need not run
            objects: list[Any] = [
                jobs,
                session,
                tx,
                delivery,
                message,
                await jobs.configuration(),
                jobs.admin,
                session.admin,
                consumer,
                listener,
                Batch("jobs", [], work_of(tx)),
                jobs.dead_letters,
                jobs.leases,
            ]
            return {_public(obj): {name for name in dir(obj) if not name.startswith("_")} for obj in objects}


def _public(shown: object) -> str:
    """Return the name of the class that users know."""
    return next(kind.__name__ for kind in type(shown).__mro__ if kind.__name__ in SHOWN)


@pytest.fixture(scope="module")
def shown() -> Mapping[str, set[str]]:
    return run_virtual(_shown)


@pytest.mark.parametrize("kind", SHOWN)
def test_completion_shows_the_names_that_users_need_and_no_other(shown: Mapping[str, set[str]], kind: str) -> None:
    assert shown[kind] == SHOWN[kind]


def test_every_name_that_completion_shows_is_documented() -> None:
    owners = {path.rpartition(".")[2]: path for path, member in documented().items() if "." not in member.name}
    fieldlike = {"Batch": {"count", "index", "queue"}, "Queue": {"name"}, "QueueConfig": CONFIG}
    missing = [
        f"{kind}.{name}"
        for kind, names in SHOWN.items()
        for name in names - fieldlike.get(kind, set())
        if f"{owners[kind]}.{name}" not in documented() and f"{owners['Message']}.{name}" not in documented()
    ]
    assert missing == []
    assert set(SHOWN).isdisjoint(INTERNAL)
    arguments = re.findall(r"^ {4}(\w+): ", inspect.getdoc(zq.QueueConfig) or "", re.MULTILINE)
    assert set(arguments) - {"InvalidOptionError"} == CONFIG


def test_a_configuration_has_one_parameter_for_each_setting() -> None:
    assert {setting.name for setting in fields(zq.QueueConfig)} == CONFIG
    for recorded in ("groups", "width", "generations", "priorities", "scheduled", "counted", "staged", "stored"):
        assert recorded in {field.name for field in fields(StoredConfig)}
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            zq.QueueConfig(**{recorded: 1})  # type: ignore[arg-type]
        assert recorded not in repr(zq.QueueConfig(shards=2))
