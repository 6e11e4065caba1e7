"""Tests that share a server leave nothing on it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiozkqueue.testing.cleaning import delete_tree

if TYPE_CHECKING:
    from tests.observer import Observer


async def test_a_tests_root_is_deleted_with_all_below_it(
    zookeeper: str, queue_root: str, server_view: Observer
) -> None:
    for name in ("a/b/c", "a/d", "e", "f/g"):
        await server_view.create(f"{queue_root}/{name}", b"x")
    await asyncio.gather(*(server_view.create(f"{queue_root}/many/{n:04}") for n in range(1200)))
    await server_view.create(f"{queue_root}-not-mine")
    await asyncio.to_thread(delete_tree, zookeeper, queue_root)
    assert await server_view.tree(queue_root) == {}
    assert await server_view.exists(f"{queue_root}-not-mine")
    await server_view.delete(f"{queue_root}-not-mine")


async def test_a_root_that_was_never_made_is_no_error(zookeeper: str, queue_root: str) -> None:
    await asyncio.to_thread(delete_tree, zookeeper, queue_root)


async def test_a_server_that_has_gone_is_no_error(queue_root: str) -> None:
    await asyncio.to_thread(delete_tree, "127.0.0.1:1", queue_root)


async def test_the_observer_tells_owners_versions_and_the_tree(queue_root: str, server_view: Observer) -> None:
    await server_view.create(f"{queue_root}/locks/lock-1", b"mine", ephemeral=True)
    await server_view.create(f"{queue_root}/item", b"one")
    await server_view.set(f"{queue_root}/item", b"two")
    assert await server_view.version(f"{queue_root}/item") == 1
    assert await server_view.children(queue_root) == ["item", "locks"]
    owners = await server_view.ephemerals(queue_root)
    assert list(owners) == [f"{queue_root}/locks/lock-1"]
    assert (await server_view.tree(queue_root))[f"{queue_root}/item"] == b"two"
    await server_view.delete(f"{queue_root}/locks/lock-1")
    await server_view.gone(f"{queue_root}/locks/lock-1")
