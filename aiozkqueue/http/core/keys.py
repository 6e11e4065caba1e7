"""API keys: created here, stored in ZooKeeper as hashes, shown once.

``<root>/.keys/<first 32 digits of the hash>`` contains ``{"name": "…", "hash": "…", "allow": ["queue|post|orders*"]}``.
A key is 256 random bits, so its SHA-256 is as safe as any slow hash. Servers cache keys for a few seconds: a revoked
key is refused everywhere within `FRESH`.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import math
import secrets
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from aiozkqueue.errors import AccessDeniedError, InvalidOptionError, NotCommittedError
from aiozkqueue.layout import check_queue_name
from aiozkqueue.wording import counted
from aiozkqueue.zookeeper import (
    Create,
    Delete,
    MultiError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    apply_until_answered,
    below,
    changes,
    reads,
)

from .permissions import Permissions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.session.core import SessionCore
    from aiozkqueue.zookeeper import CallLimit

log: Final = logging.getLogger(__name__)

#: Seconds for which a key that was read is cached.
FRESH: Final = 5.0
#: Seconds between two syncs with the leader for unknown keys, because anyone can send any number of them.
SYNC_EVERY: Final = 1.0
#: Keys remembered, including invalid ones.
REMEMBERED: Final = 10_000
PREFIX: Final = "aiozkqueue-"
_NAME_DIGITS: Final = 32


class _Stored(BaseModel):
    """A key's znode."""

    model_config = ConfigDict(strict=True)

    name: str
    hash: str
    allow: list[str]


class KeyInfo(NamedTuple):
    """The stored data of a key, without the key itself."""

    name: str
    allow: Sequence[str]


class Caller(NamedTuple):
    """The client of a request."""

    name: str
    permissions: Permissions


class _Remembered(NamedTuple):
    stored: _Stored | None
    permissions: Permissions
    at: float


class Keys:
    """The keys of all servers under one root."""

    def __init__(self, runtime: SessionCore) -> None:
        self._runtime = runtime
        self._base = f"{runtime.root}/.keys"
        self._known: OrderedDict[str, _Remembered] = OrderedDict()
        self._syncing = asyncio.Lock()
        self._synced = -math.inf  # when the last sync began

    @property
    def _limit(self) -> CallLimit:
        """The limit of one call, which `reads` and `changes` apply."""
        return self._runtime.limit("API keys")

    @changes
    async def create(self, name: str, allow: Sequence[str]) -> str:
        """Create a key and return it; it cannot be read again.

        Raises: InvalidNameError; InvalidOptionError: a permission is invalid, or a key of this name exists;
        NotCommittedError: it could not be stored; OutcomeUnknownError, AccessDeniedError, SessionClosedError.
        """
        check_queue_name(name, "key")
        Permissions(allow)
        if not allow:
            msg = f"key {name!r}: give at least one permission, such as 'queue|post|orders*'"
            raise InvalidOptionError(msg)
        await self._runtime.zookeeper.sync(self._base)  # a lagging server may not know a key of this name
        unreadable: list[AccessDeniedError] = []
        if any(known.name == name for _, known in await self._stored(unreadable)):
            msg = f"key {name!r} already exists: revoke it first, or use another name"
            raise InvalidOptionError(msg)
        if unreadable:
            text = "key %r is created, although %s may not be read and may have the same name: %s"
            log.warning(text, name, counted(len(unreadable), "key"), unreadable[0])
        text = PREFIX + secrets.token_urlsafe(32)
        digest = _digest(text)
        data = json.dumps({"name": name, "hash": digest, "allow": list(allow)}).encode()
        zookeeper = self._runtime.zookeeper
        while True:
            try:
                await apply_until_answered(zookeeper, [Create(self._path(digest), data)])
            except MultiError as error:
                if isinstance(error.error, NodeExistsError):
                    break  # an earlier copy was applied and its reply lost: no other client has these 256 bits
                if isinstance(error.error, NoNodeError):
                    await self._ensure_base()
                elif isinstance(error.error, NoAuthError):
                    raise self._denied(error.error) from error
                else:
                    raise NotCommittedError(str(error)) from error
            else:
                break
        self._known.pop(digest, None)
        return text

    @reads
    async def all(self, unreadable: list[AccessDeniedError] | None = None) -> list[KeyInfo]:
        """List the keys by their names.

        With ``unreadable``, add the errors of keys that this user may not read to it, and list the others.

        Raises: AccessDeniedError, ConnectionLostError, SessionClosedError.
        """
        return sorted(KeyInfo(key.name, tuple(key.allow)) for _, key in await self._stored(unreadable))

    @changes
    async def revoke(self, name: str, unreadable: list[AccessDeniedError] | None = None) -> int:
        """Remove the key of this name; return how many there were.

        With ``unreadable``, add the errors of keys that this user may not read to it; one may have this name.

        Raises: NotCommittedError: the key could not be removed; OutcomeUnknownError, AccessDeniedError,
        SessionClosedError.
        """
        await self._runtime.zookeeper.sync(self._base)  # a lagging server may not know the key
        named = [(entry, key) for entry, key in await self._stored(unreadable) if key.name == name]
        for entry, key in named:
            await self._delete(entry)
            self._known.pop(key.hash, None)
        return len(named)

    async def caller(self, text: str) -> Caller | None:
        """Return the caller with this key; None if the key is unknown.

        Raises: ConnectionLossError, SessionExpiredError of the zookeeper package; AccessDeniedError.
        """
        digest = _digest(text)
        known = self._known.get(digest)
        if known is None or time.monotonic() - known.at > FRESH:
            stored = await self._read(digest[:_NAME_DIGITS])
            if stored is None and text.startswith(PREFIX):  # a lagging server may not know a new key
                await self._catch_up()
                stored = await self._read(digest[:_NAME_DIGITS])
            if stored is not None and not hmac.compare_digest(stored.hash, digest):
                stored = None
            known = _Remembered(stored, _permissions(stored), time.monotonic())
            self._known[digest] = known
            self._known.move_to_end(digest)  # so that unknown keys do not displace the keys in use
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return None if known.stored is None else Caller(known.stored.name, known.permissions)

    async def _catch_up(self) -> None:
        """Let the server catch up with the leader as of this call. Calls share a sync, and syncs are rare."""
        asked = time.monotonic()
        async with self._syncing:
            if self._synced > asked:
                return
            await asyncio.sleep(self._synced + SYNC_EVERY - time.monotonic())
            began = time.monotonic()
            await self._runtime.zookeeper.sync(self._base)
            self._synced = began

    def knows(self, text: str) -> bool:
        """Whether this was a valid key when it was last read."""
        known = self._known.get(_digest(text))
        return known is not None and known.stored is not None

    async def _entries(self) -> list[str]:
        try:
            return await below(self._runtime.zookeeper, self._base)
        except NoAuthError as error:
            raise self._denied(error) from error

    async def _ensure_base(self) -> None:
        try:
            await self._runtime.zookeeper.ensure(self._base)
        except NoAuthError as error:
            raise self._denied(error) from error

    async def _read(self, entry: str) -> _Stored | None:
        try:
            node = await self._runtime.zookeeper.read(f"{self._base}/{entry}")
            return _Stored.model_validate_json(node.data)
        except (NoNodeError, ValidationError):
            return None
        except NoAuthError as error:
            raise self._denied(error) from error

    async def _stored(self, unreadable: list[AccessDeniedError] | None) -> list[tuple[str, _Stored]]:
        """Read all keys, each with the name of its znode. Raises: AccessDeniedError: without ``unreadable``."""
        stored: list[tuple[str, _Stored]] = []
        for entry in await self._entries():
            try:
                found = await self._read(entry)
            except AccessDeniedError as error:
                if unreadable is None:
                    raise
                unreadable.append(error)
            else:
                if found is not None:
                    stored.append((entry, found))
        return stored

    async def _delete(self, entry: str) -> None:
        """Delete a key, unless it is gone: a reply may have been lost, or another client have deleted it.

        Raises: AccessDeniedError, NotCommittedError.
        """
        try:
            await apply_until_answered(self._runtime.zookeeper, [Delete(f"{self._base}/{entry}")])
        except MultiError as error:
            if isinstance(error.error, NoAuthError):
                raise self._denied(error.error) from error
            if not isinstance(error.error, NoNodeError):
                raise NotCommittedError(str(error)) from error

    def _path(self, digest: str) -> str:
        return f"{self._base}/{digest[:_NAME_DIGITS]}"

    def _denied(self, error: NoAuthError) -> AccessDeniedError:
        return AccessDeniedError(f"keys under {self._base}: {error}; {error.advice}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _permissions(stored: _Stored | None) -> Permissions:
    if stored is None:
        return Permissions.none()
    try:
        return Permissions(stored.allow)
    except InvalidOptionError:  # of a newer version: an unknown permission allows nothing
        return Permissions.none()
