"""The registry in which clients find servers: that of Bazaarvoice's Ostrich, in ZooKeeper.

Each server has an ephemeral znode ``/ostrich/<cluster>-emodb-queue-1/<host:port>``, and one with ``dedupq``. Its JSON
contains the service's address as a JSON text within a string. EmoDB's Java clients and `QueueServiceClient` read it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from aiozkqueue.zookeeper import (
    Create,
    Delete,
    MultiError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
    ZooKeeperError,
    below,
    parent_of,
    read_pages,
    until_answered,
)

from .core.names import Kind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from aiozkqueue.session.core import SessionCore
    from aiozkqueue.zookeeper import ZooKeeper

log: Final = logging.getLogger(__name__)

ROOT: Final = "/ostrich"
DEFAULT_CLUSTER: Final = "local_default"
#: Seconds to wait for ZooKeeper to delete each of the two entries.
WITHDRAWAL: Final = 1.0


@dataclass(frozen=True, slots=True)
class Registration:
    """The address of a server."""

    cluster: str
    address: str
    """``host:port``, as clients reach it."""
    admin_address: str

    def entries(self, now: datetime) -> dict[str, bytes]:
        """Return the entries to register: their data by path."""
        return {f"{folder(self.cluster, kind)}/{self.address}": self._entry(kind, now) for kind in Kind}

    def _entry(self, kind: Kind, now: datetime) -> bytes:
        payload = {
            "serviceUrl": f"http://{self.address}/{kind}/1",
            "adminUrl": f"http://{self.admin_address}",
            "extensions": {"proxy": False},
        }
        moment = now.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        entry = {
            "registration-time": moment,
            "name": _service(self.cluster, kind),
            "id": self.address,
            "payload": json.dumps(payload),
        }
        return json.dumps(entry).encode()


def folder(cluster: str, kind: Kind) -> str:
    """Return the path below which the servers of a cluster's service are registered."""
    return f"{ROOT}/{_service(cluster, kind)}"


def _service(cluster: str, kind: Kind) -> str:
    return f"{cluster}-emodb-{kind}-1"


def service_url(data: bytes) -> str | None:
    """Return the address in a registered entry; None if it does not decode."""
    try:
        payload = json.loads(json.loads(data)["payload"])
        url = payload["serviceUrl"]
    except (ValueError, KeyError, TypeError):
        return None
    return url if isinstance(url, str) else None


async def service_urls(zookeeper: ZooKeeper, cluster: str, kind: Kind) -> list[str]:
    """Return the addresses of all registered servers. Raises: ZooKeeperError."""
    path = folder(cluster, kind)
    nodes = await read_pages(zookeeper, [f"{path}/{name}" for name in await below(zookeeper, path)])
    return [url for node in nodes if node is not None and (url := service_url(node.data)) is not None]


@asynccontextmanager
async def registered(runtime: SessionCore, registration: Registration) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Keep a server registered during the block, across ZooKeeper sessions.

    Yields a function that removes the registration before the block ends, unless another server has registered the same
    address meanwhile. It takes at most `WITHDRAWAL` seconds for each entry: one that cannot be deleted disappears with
    its session.
    """
    keeping = asyncio.create_task(_keep(runtime.zookeeper, registration), name="registration with Ostrich")

    async def withdraw() -> None:
        if keeping.cancelled():
            return
        keeping.cancel()
        await asyncio.wait([keeping])
        for path in registration.entries(datetime.now(UTC)):
            with suppress(ZooKeeperError, TimeoutError):
                async with asyncio.timeout(WITHDRAWAL):
                    await _withdraw(runtime.zookeeper, path)

    try:
        yield withdraw
    finally:
        await withdraw()


async def _withdraw(zookeeper: ZooKeeper, path: str) -> None:
    """Delete an entry if this session has created it. Raises: ZooKeeperError."""
    await zookeeper.sync(path)
    stat = await zookeeper.exists(path)
    if stat is not None and stat.ephemeral_owner == zookeeper.session_id:
        await zookeeper.multi([Delete(path)])


async def _keep(zookeeper: ZooKeeper, registration: Registration) -> None:
    generation = await zookeeper.wait_connected()
    while True:
        register = partial(_register, zookeeper, registration, generation)
        try:
            await until_answered(zookeeper, register, generation=generation)
        except SessionExpiredError:
            pass
        except NoAuthError as error:
            log.error(  # noqa: TRY400 - a traceback would add nothing
                "no client finds this server: its registration %s is refused (%s); let the ACL of %s and of the "
                "znodes below it permit this user to create and delete, and restart the server",
                registration.address,
                error,
                ROOT,
            )
        except NotEmptyError as error:
            log.error(  # noqa: TRY400 - a traceback would add nothing
                "no client finds this server: an earlier registration of %s cannot be replaced (%s); delete it with "
                "the znodes below it, which another program has created, and restart the server",
                registration.address,
                error,
            )
        generation = await zookeeper.wait_connected(after=generation)


async def _register(zookeeper: ZooKeeper, registration: Registration, generation: int) -> None:
    """Create the entries, in place of those of an earlier session. Raises: ZooKeeperError."""
    for path, data in registration.entries(datetime.now(UTC)).items():
        while not await _create(zookeeper, Create(path, data, ephemeral=True), generation):
            pass  # the obstacle has been removed


async def _create(zookeeper: ZooKeeper, entry: Create, generation: int) -> bool:
    """Create an entry and return True, or remove what prevents that. Raises: ZooKeeperError."""
    try:
        await zookeeper.multi([entry], generation=generation)
    except MultiError as error:
        if isinstance(error.error, NoNodeError):
            await zookeeper.ensure(parent_of(entry.path))
        elif isinstance(error.error, NodeExistsError):
            await _delete(zookeeper, entry.path, generation)
        else:
            raise error.error from error
        return False
    return True


async def _delete(zookeeper: ZooKeeper, path: str, generation: int) -> None:
    """Delete the entry of an earlier session that has not ended, and with which ZooKeeper would delete the new one.

    Raises: ZooKeeperError: it cannot be deleted.
    """
    try:
        await zookeeper.multi([Delete(path)], generation=generation)
    except MultiError as refusal:
        if not isinstance(refusal.error, NoNodeError):  # then it has just ended
            raise refusal.error from refusal
