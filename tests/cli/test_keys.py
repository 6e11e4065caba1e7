"""API keys: shown once, stored as hashes, listed and revoked by name."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.cli.exits import Exit
from tests.integration.queue.test_obstacles import set_acl

if TYPE_CHECKING:
    from tests.cli.conftest import Cli
    from tests.observer import Observer

pytestmark = pytest.mark.timeout(60)


async def test_a_key_is_printed_once_on_the_last_line_and_stored_as_a_hash(
    cli: Cli, server_view: Observer, queue_root: str
) -> None:
    created = await asyncio.to_thread(
        cli, "keys", "create", "orders", "--allow", "queue|post|orders*", "--allow", "queue|poll|orders*"
    )
    assert created.status == 0
    key = created.text.splitlines()[-1]
    assert key.startswith("aiozkqueue-")
    assert len(key) > 40
    assert key not in created.stderr
    stored = await server_view.tree(f"{queue_root}/.keys")
    assert len(stored) == 2
    assert all(key not in path and key.encode() not in data for path, data in stored.items())
    listed = await asyncio.to_thread(cli, "keys", "list", "--json")
    assert listed.records == [{"name": "orders", "allow": ["queue|post|orders*", "queue|poll|orders*"]}]
    assert key not in listed.text


def test_a_key_with_a_taken_name_or_an_invalid_permission_is_refused(cli: Cli) -> None:
    assert cli("keys", "create", "one", "--allow", "queue|*|*").status == 0
    repeated = cli("keys", "create", "one", "--allow", "queue|*|*")
    assert repeated.status != 0
    assert "already" in repeated.stderr
    for wrong in ("queue|fly|*", "orders", "queue|post|a b", "queue|post|a|b"):
        refused = cli("keys", "create", "two", "--allow", wrong)
        assert refused.status != 0
        assert "not a permission" in refused.stderr
        assert refused.stdout == b""


async def test_a_key_that_may_not_be_read_does_not_hide_the_others(
    cli: Cli, server_view: Observer, queue_root: str
) -> None:
    assert (await asyncio.to_thread(cli, "keys", "create", "theirs", "--allow", "queue|*|*")).status == 0
    [theirs] = await server_view.children(f"{queue_root}/.keys")
    await set_acl(server_view, f"{queue_root}/.keys/{theirs}", readable=False)
    created = await asyncio.to_thread(cli, "keys", "create", "ours", "--allow", "queue|*|*")
    assert (created.status, created.text[:11]) == (0, "aiozkqueue-")
    assert "key 'ours' is created, although 1 key may not be read and may have the same name: " in created.stderr
    assert (await asyncio.to_thread(cli, "keys", "create", "ours", "--allow", "queue|*|*")).status == Exit.USAGE
    listed = await asyncio.to_thread(cli, "keys", "list", "--json")
    assert (listed.status, [key["name"] for key in listed.records]) == (Exit.REFUSED, ["ours"])
    assert theirs in listed.stderr
    revoked = await asyncio.to_thread(cli, "keys", "revoke", "ours", "--json")
    assert (revoked.status, revoked.records) == (Exit.REFUSED, [{"name": "ours", "revoked": True}])
    assert theirs in revoked.stderr
    unknown = await asyncio.to_thread(cli, "keys", "revoke", "theirs")
    assert (unknown.status, theirs in unknown.stderr, "there is no key" in unknown.stderr) == (
        Exit.REFUSED,
        True,
        False,
    )
    assert await server_view.children(f"{queue_root}/.keys") == [theirs]


def test_a_key_is_revoked_by_its_name(cli: Cli) -> None:
    assert cli("keys", "create", "one", "--allow", "queue|*|*").status == 0
    assert cli("keys", "revoke", "one").status == 0
    assert cli("keys", "revoke", "one").status == 1
    two = cli("keys", "create", "two", "--allow", "queue|*|*", "--json")
    [made] = two.records
    assert (made["name"], made["allow"], two.stderr) == ("two", ["queue|*|*"], "")
    assert made["key"].startswith("aiozkqueue-")
    for revoked in (True, False):
        done = cli("keys", "revoke", "two", "--json")
        assert (done.records, done.stderr) == ([{"name": "two", "revoked": revoked}], "")
    assert cli("keys", "rotate", "--json").records == [{"rotated": True}]
    none = cli("keys", "list", "--json")
    assert (none.status, none.records) == (1, [])


def test_rotate_creates_and_later_replaces_the_secret_that_signs_message_ids(cli: Cli) -> None:
    for _ in range(2):
        rotated = cli("keys", "rotate")
        assert (rotated.status, rotated.stdout) == (0, b"")
        assert "new secret" in rotated.stderr
    assert cli("keys", "list").status == 1
