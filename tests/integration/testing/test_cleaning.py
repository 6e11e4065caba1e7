"""Tests that share a server leave no znodes on it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiozkqueue.testing.cleaning import delete_tree

if TYPE_CHECKING:
    from tests.observer import Observer


async def test_the_root_of_a_test_is_deleted_with_all_its_znodes(
    zookeeper: str, queue_root: str, server_view: Observer
) -> None:
    for name in ("a/b/c", "a/d", "e", "f/g"):
        await server_view.create(f"{queue_root}/{name}", b"x")
    await asyncio.gather(*(server_view.create(f"{queue_root}/many/{n:04}") for n in range(1200)))
    for name in ("0007/below/it", "0700/below"):
        await server_view.create(f"{queue_root}/many/{name}", b"x")
    await server_view.create(f"{queue_root}-not-mine")
    await asyncio.to_thread(delete_tree, zookeeper, queue_root)
    assert await server_view.tree(queue_root) == {}
    assert await server_view.exists(f"{queue_root}-not-mine")
    await server_view.delete(f"{queue_root}-not-mine")


async def test_deleting_a_root_that_does_not_exist_raises_nothing(zookeeper: str, queue_root: str) -> None:
    await asyncio.to_thread(delete_tree, zookeeper, queue_root)


async def test_deleting_a_root_after_its_server_stopped_raises_nothing(queue_root: str) -> None:
    await asyncio.to_thread(delete_tree, "127.0.0.1:1", queue_root)


async def test_the_observer_returns_owners_versions_and_the_tree(queue_root: str, server_view: Observer) -> None:
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
