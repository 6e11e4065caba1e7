"""Sessions with credentials at queues whose other clients have no credentials."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from kazoo.security import make_acl

import aiozkqueue as zq
from aiozkqueue.session.internals import core_of
from aiozkqueue.zookeeper import ConnectionLossError
from aiozkqueue.zookeeper.wire import error_of

if TYPE_CHECKING:
    from tests.observer import Observer

pytestmark = pytest.mark.timeout(120)

CAROL = zq.Auth.digest("carol", "s3cret-of-carol")


async def test_a_session_whose_items_other_programs_cannot_read_warns_once_and_names_them(
    zookeeper: str, queue_root: str, path: str, server_view: Observer, caplog: pytest.LogCaptureFixture
) -> None:
    await server_view.create(path)
    with caplog.at_level(logging.WARNING, logger="aiozkqueue"):
        async with zq.connect(zookeeper, root=f"{queue_root}-carol", auth=[CAROL]) as session:
            queue = session.curator_queue(path, lock_path=f"{path}-locks")
            await queue.put(b"one")
            await queue.put(b"two")
    [warning] = [record.getMessage() for record in caplog.records if path in record.getMessage()]
    assert "world:anyone may use it" in warning
    assert "digest:carol" in warning
    assert "acl=" in warning


@pytest.mark.parametrize(
    ("error", "warnings"), [(ConnectionLossError("lost"), 1), (error_of(-77), 0)], ids=["lost", "code"]
)
async def test_a_list_that_cannot_be_read_at_once_prevents_no_put(
    zookeeper: str,
    queue_root: str,
    path: str,
    server_view: Observer,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    warnings: int,
) -> None:
    await server_view.create(path)
    async with zq.connect(zookeeper, root=f"{queue_root}-carol", auth=[CAROL]) as session:
        client: Any = core_of(session).zookeeper  # its methods are replaced
        acl, failed = client.acl, list[str]()

        async def failing(of: str) -> Any:  # as the method
            if not failed:
                failed.append(of)
                raise error
            return await acl(of)

        client.acl = failing
        await session.curator_queue(path, lock_path=f"{path}-locks").put(b"one")
        assert failed
    assert len([record for record in caplog.records if "may use it" in record.getMessage()]) == warnings


@pytest.mark.parametrize("auth", [[], [CAROL]], ids=["without credentials", "with an open list"])
async def test_a_session_whose_items_everybody_can_read_does_not_warn(
    zookeeper: str,
    queue_root: str,
    path: str,
    server_view: Observer,
    caplog: pytest.LogCaptureFixture,
    auth: list[zq.Auth],
) -> None:
    await server_view.create(path)
    with caplog.at_level(logging.WARNING, logger="aiozkqueue"):
        root = f"{queue_root}-open"
        async with zq.connect(zookeeper, root=root, auth=auth, acl=[zq.Acl.all("world", "anyone")]) as session:
            await session.kazoo_queue(path).put(b"one")
    assert not [record for record in caplog.records if path in record.getMessage()]


@pytest.mark.parametrize("number", [1, 64])
async def test_a_producer_that_may_not_delete_learns_that_it_cannot_skip_taken_names(
    session: zq.QueueSession, path: str, server_view: Observer, number: int
) -> None:
    """A queue that was copied to another ensemble has its items, but a lower counter."""
    await server_view.create(path)
    for taken in range(number, 2 * number):
        await server_view.create(f"{path}/queue-{taken:010d}")
    await server_view.set_acl(path, [make_acl("world", "anyone", read=True, create=True, write=True, admin=True)])
    queue = session.curator_queue(path, lock_path=f"{path}-locks")
    with pytest.raises(zq.AccessDeniedError, match=f"no right to delete children of {path}"):
        await queue.put(b"one")
    assert await queue.size() == number
