"""Message ids over HTTP: signed places, so that a client can only use ids that a server has returned.

An id is ``<lane>~<item name>~<secret's id>~<signature>``, with tildes instead of slashes in the lane. The signature is
the first 128 bits of an HMAC-SHA256 of queue and place. ``<root>/.tokens`` contains the secrets, which all servers
under one root share: ``{"secrets": [{"id": "0f3a…", "secret": "…"}, …]}``. The first secret signs. The first server
that needs this znode creates it, with the same access control list as its other znodes. A rotation adds a new secret at
the front and keeps the previous one, whose ids stay valid until the next rotation.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
import time
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from aiozkqueue.errors import AccessDeniedError, InvalidOptionError, NotCommittedError, PayloadError
from aiozkqueue.layout import MalformedError, lease_token, leased_place
from aiozkqueue.zookeeper import (
    BadVersionError,
    Create,
    MultiError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    SetData,
    apply_until_answered,
    changes,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiozkqueue.session.core import SessionCore
    from aiozkqueue.zookeeper import CallLimit, Operation

#: Seconds for which secrets are cached.
FRESH: Final = 5.0
#: The number of secrets: the signing secret and the previous one.
KEPT: Final = 2
#: The number of ids that are checked in one step.
TOGETHER: Final = 256
_SIGNATURE_DIGITS: Final = 32
_SHOWN: Final = 80


class Signer(BaseModel):
    """A secret that signs message ids."""

    model_config = ConfigDict(strict=True)

    id: str = Field(pattern=r"^[0-9a-f]{8}$")
    secret: str = Field(pattern=r"^[0-9a-f]{64}$")

    def message_id(self, queue: str, place: str) -> str:
        """Return the id of the message at a place relative to its queue, ``<lane>/<name>``."""
        return f"{place.replace('/', '~')}~{self.id}~{self.signature(queue, place)}"

    def signature(self, queue: str, place: str) -> str:
        """Return the signature of a queue and a place."""
        text = f"{queue}/{place}".encode("utf-8", "surrogatepass")
        return hmac.digest(bytes.fromhex(self.secret), text, hashlib.sha256).hex()[:_SIGNATURE_DIGITS]


class _Secrets(BaseModel):
    model_config = ConfigDict(strict=True)

    secrets: list[Signer] = Field(min_length=1, max_length=16)

    def by_id(self, id: str) -> Signer | None:
        return next((signer for signer in self.secrets if signer.id == id), None)


class MessageIds:
    """Signs and checks message ids, with secrets that all servers under one root share."""

    def __init__(self, runtime: SessionCore) -> None:
        self._runtime = runtime
        self._path = f"{runtime.root}/.tokens"
        self._known: _Secrets | None = None
        self._read_at = float("-inf")

    @property
    def _limit(self) -> CallLimit:
        """The limit of one call, which `reads` and `changes` apply."""
        return self._runtime.limit("secrets of message ids")

    async def signer(self) -> Signer:
        """Return the current signer.

        Raises: AccessDeniedError, NotCommittedError, PayloadError: the secrets cannot be read or created;
        ConnectionLossError, SessionExpiredError of the zookeeper package.
        """
        return (await self._secrets()).secrets[0]

    async def lease_tokens(self, queue: str, ids: Iterable[str]) -> list[str]:
        """Return the lease tokens of the messages with these ids.

        Raises: as `signer`; InvalidOptionError: an id is malformed, forged, of another queue, or signed with a secret
        that two rotations have replaced.
        """
        tokens: list[str] = []
        for message_id in ids:
            tokens.append(await self._lease_token(queue, message_id))
            if not len(tokens) % TOGETHER:
                await asyncio.sleep(0)  # a body full of ids would block the event loop
        return tokens

    @changes
    async def rotate(self) -> None:
        """Sign with a new secret from now on. Ids of the previous secret stay valid until the next rotation.

        Raises: AccessDeniedError, PayloadError: the secrets cannot be read or changed; NotCommittedError,
        OutcomeUnknownError, SessionClosedError.
        """
        added = _new()
        while True:
            node = await self._read()
            if node is None:
                await self._make()
                return
            stored, version = node
            # It is stored already if an earlier copy was applied, and its reply lost: a second one would end old ids.
            if stored.by_id(added.id) is not None or await self._write(
                SetData(self._path, _encode(_Secrets(secrets=[added, *stored.secrets][:KEPT])), version)
            ):
                self._read_at = float("-inf")
                return

    # -- internal

    async def _lease_token(self, queue: str, text: str) -> str:
        place, signed_by, signature = ("", "", *text.rsplit("~", 2))[-3:]
        secret = (await self._secrets()).by_id(signed_by)
        if secret is None:  # another server may sign with a new one; a request with a forged id costs this one read
            await self._runtime.zookeeper.sync(self._path)
            secret = (await self._refreshed()).by_id(signed_by)
        place = place.replace("~", "/")
        given = signature.encode("utf-8", "surrogatepass")  # compare_digest refuses a str that is not ASCII
        if secret is not None and hmac.compare_digest(given, secret.signature(queue, place).encode()):
            token = lease_token(queue, place)
            try:
                leased_place(queue, token)
            except MalformedError:
                pass
            else:
                return token
        msg = f"queue {queue!r}: {text[:_SHOWN]!r} is not the id of a message of this queue; pass ids from poll or peek"
        raise InvalidOptionError(msg)

    async def _secrets(self) -> _Secrets:
        if self._known is None or time.monotonic() - self._read_at > FRESH:
            return await self._refreshed()
        return self._known

    async def _refreshed(self) -> _Secrets:
        start = time.monotonic()
        while (node := await self._read()) is None:
            await self._make()
        self._known, self._read_at = node[0], start
        return node[0]

    async def _read(self) -> tuple[_Secrets, int] | None:
        try:
            data, stat = await self._runtime.zookeeper.read(self._path)
            return _Secrets.model_validate_json(data), stat.version
        except NoNodeError:
            return None
        except NoAuthError as error:
            raise self._denied(error) from error
        except ValidationError:
            msg = f"the secrets at {self._path} do not decode; remove this znode and the servers make new ones"
            raise PayloadError(msg) from None  # the cause shows them

    async def _make(self) -> None:
        """Create the first secret, unless another server does."""
        while not await self._write(Create(self._path, _encode(_Secrets(secrets=[_new()])))):
            if await self._read() is not None:
                return

    async def _write(self, operation: Operation) -> bool:
        """Apply a change, and return whether that is known to have worked. If not, read again."""
        zookeeper = self._runtime.zookeeper
        try:
            await apply_until_answered(zookeeper, [operation])
        except MultiError as error:
            if isinstance(error.error, NoAuthError):
                raise self._denied(error.error) from error
            if isinstance(error.error, NoNodeError):
                await self._ensure_root()
            elif not isinstance(error.error, NodeExistsError | BadVersionError):
                raise NotCommittedError(str(error)) from error
        else:
            return True
        return False

    async def _ensure_root(self) -> None:
        try:
            await self._runtime.zookeeper.ensure(self._runtime.root)
        except NoAuthError as error:
            raise self._denied(error) from error

    def _denied(self, error: NoAuthError) -> AccessDeniedError:
        return AccessDeniedError(f"secrets at {self._path}: {error}; {error.advice}")


def _new() -> Signer:
    return Signer(id=secrets.token_hex(4), secret=secrets.token_hex(32))


def _encode(stored: _Secrets) -> bytes:
    return json.dumps(stored.model_dump()).encode()
