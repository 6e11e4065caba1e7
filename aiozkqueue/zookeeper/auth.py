"""Credentials of this client (`Auth`), and access to the znodes that it creates (`Acl`)."""

from __future__ import annotations

import base64
import enum
import hashlib
import re
from dataclasses import dataclass, field
from typing import cast

from aiozkqueue.errors import InvalidOptionError

_BETWEEN = re.compile(r"\s+(?=(?:digest|sasl):)")


def _check_text(of: str, what: str, given: object) -> None:
    """Refuse a part that cannot be sent; the error does not repeat it. Raises: InvalidOptionError."""
    if not isinstance(given, str):
        raise InvalidOptionError(f"{of}: the {what} is {type(given).__name__}: it must be a str")
    if given.encode(errors="replace").decode() != given:
        raise InvalidOptionError(f"{of}: the {what} has lone surrogates: give a str that UTF-8 can encode")


@dataclass(frozen=True, slots=True)
class Auth:
    """Credentials, sent to the server first on each connection. No repr or error contains the password."""

    scheme: str
    user: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        for what in ("scheme", "user", "password"):
            given: object = getattr(self, what)  # an unset variable gives None, which is not a password
            _check_text("Auth", what, given)
        if not self.scheme or not self.user:
            raise InvalidOptionError(
                "Auth needs a scheme and a user; use Auth.digest(user, password) or Auth.sasl(user, password)"
            )
        if ":" in self.user:
            raise InvalidOptionError(
                f"Auth: the user {self.user!r} contains a colon, which separates user and password on the wire"
            )

    @classmethod
    def digest(cls, user: str, password: str) -> Auth:
        """Return credentials of ZooKeeper's ``digest`` scheme, which are sent in clear text: use them with TLS."""
        return cls("digest", user, password)

    @classmethod
    def sasl(cls, user: str, password: str) -> Auth:
        """Return credentials for SASL with DIGEST-MD5, of a user in the JAAS file; the password is never sent."""
        return cls("sasl", user, password)

    @classmethod
    def parse(cls, text: str) -> Auth:
        """Read ``digest:USER:PASSWORD`` or ``sasl:USER:PASSWORD``, as written in a variable or a file.

        Raises:
            InvalidOptionError: the text has neither form; the error does not repeat it.
        """
        if not isinstance(cast("object", text), str):
            raise InvalidOptionError(f"credentials are a str, not {type(text).__name__}")
        scheme, _, credentials = text.partition(":")
        user, colon, password = credentials.partition(":")
        if scheme not in ("digest", "sasl") or not user or not colon:
            raise InvalidOptionError("credentials are digest:USER:PASSWORD or sasl:USER:PASSWORD")
        return cls(scheme, user, password)

    @classmethod
    def parse_all(cls, text: str) -> list[Auth]:
        """Read several credentials in the form of `parse`, separated by white space. A password may contain spaces.

        Raises:
            InvalidOptionError: one of them has neither form; the error does not repeat the text.
        """
        if not isinstance(cast("object", text), str):
            raise InvalidOptionError(f"credentials are a str, not {type(text).__name__}")
        text = text.strip()
        return [cls.parse(part) for part in _BETWEEN.split(text)] if text else []


class Permission(enum.IntFlag):
    """The permissions of an `Acl`. The ACL of its parent determines whether a znode may be deleted."""

    READ = 1
    WRITE = 2
    CREATE = 4
    DELETE = 8
    ADMIN = 16
    ALL = 31


@dataclass(frozen=True, slots=True)
class Acl:
    """One entry of a znode's access control list."""

    scheme: str
    id: str
    permissions: Permission = Permission.ALL

    def __post_init__(self) -> None:
        _check_text("Acl", "scheme", self.scheme)
        _check_text("Acl", "id", self.id)
        if not self.scheme:
            raise InvalidOptionError('Acl needs a scheme, such as "world" or "digest"')
        given: object = self.permissions
        if not isinstance(given, int) or isinstance(given, bool) or not 0 < given <= Permission.ALL:
            raise InvalidOptionError(f"Acl: permissions={given!r}: give a Permission, such as Permission.READ")

    @classmethod
    def all(cls, scheme: str, id: str) -> Acl:
        """Return an entry with all permissions for this id of this scheme: ``Acl.all("world", "anyone")``."""
        return cls(scheme, id)

    @classmethod
    def read(cls, scheme: str, id: str) -> Acl:
        """Return an entry with the permission to read only."""
        return cls(scheme, id, Permission.READ)

    @classmethod
    def creator(cls) -> Acl:
        """Return an entry with all permissions for the identities that the creating client has authenticated."""
        return cls("auth", "")

    @classmethod
    def digest(cls, user: str, password: str, permissions: Permission = Permission.ALL) -> Acl:
        """Return an entry for another user of the ``digest`` scheme; the znode stores a hash of the password."""
        _check_text("Acl", "user", user)
        _check_text("Acl", "password", password)
        # The scheme's own hash, defined by the server.
        hashed = hashlib.sha1(f"{user}:{password}".encode(), usedforsecurity=False).digest()
        return cls("digest", f"{user}:{base64.b64encode(hashed).decode()}", permissions)


OPEN: tuple[Acl, ...] = (Acl.all("world", "anyone"),)
CREATOR: tuple[Acl, ...] = (Acl.creator(),)
