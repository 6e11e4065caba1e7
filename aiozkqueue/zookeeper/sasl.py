"""The client's side of SASL DIGEST-MD5 (RFC 2831), as ZooKeeper's server speaks it. Pure: no I/O.

The password enters through `Auth` and leaves only as part of hashes.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import TYPE_CHECKING

from aiozkqueue.zookeeper.errors import AuthFailedError

if TYPE_CHECKING:
    from aiozkqueue.zookeeper.auth import Auth

DIGEST_URI = "zookeeper/zk-sasl-md5"  # service and host name that the server's own clients use
_MAX_CHALLENGE = 2048  # RFC 2831, 2.1.1
_DIRECTIVE = re.compile(r'\s*([A-Za-z0-9_-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s",]+))\s*(?:,|$)')


class DigestMd5:
    """One exchange: `respond` to the challenge, then `verify` the server's own proof."""

    def __init__(self, auth: Auth, *, uri: str = DIGEST_URI, cnonce: str | None = None) -> None:
        self._auth = auth
        self._uri = uri
        self._cnonce = cnonce or secrets.token_urlsafe(24)
        self._proof = ""

    def respond(self, challenge: bytes) -> bytes:
        """Return the answer to the server's challenge.

        Raises:
            AuthFailedError: the challenge is not DIGEST-MD5 with ``auth``, or not well-formed.
        """
        directives = parse_directives(challenge)
        if "nonce" not in directives or directives.get("algorithm") != "md5-sess":
            raise AuthFailedError("SASL: the server's challenge is not DIGEST-MD5; is the server set up for it?")
        if "auth" not in re.split(r"[\s,]+", directives.get("qop", "auth")):
            msg = "SASL: the server asks for integrity or confidentiality layers, which ZooKeeper lacks; use TLS"
            raise AuthFailedError(msg)
        try:
            return self._answer(directives.get("realm", ""), directives["nonce"], directives.get("charset", ""))
        except UnicodeEncodeError:
            msg = "SASL: the server does not announce UTF-8, and the exchange has letters that ISO 8859-1 lacks"
            raise AuthFailedError(msg) from None

    def _answer(self, realm: str, nonce: str, charset: str) -> bytes:
        utf8 = charset.lower() == "utf-8"
        secret = self._secret(realm, nonce, "utf-8" if utf8 else "latin-1")
        answer = self._digest(secret, nonce, "AUTHENTICATE:" + self._uri)
        self._proof = self._digest(secret, nonce, ":" + self._uri)
        parts = [f"username={_quoted(self._auth.user)}"]
        if realm:
            parts.append(f"realm={_quoted(realm)}")
        parts += [
            f"nonce={_quoted(nonce)}",
            f"cnonce={_quoted(self._cnonce)}",
            "nc=00000001",
            "qop=auth",
            f"digest-uri={_quoted(self._uri)}",
            f"response={answer}",
        ]
        if utf8:
            parts.insert(0, "charset=utf-8")
        return ",".join(parts).encode("utf-8" if utf8 else "latin-1")

    def verify(self, final: bytes) -> None:
        """Check that the server knows the password too.

        Raises:
            AuthFailedError: the server does not know it.
        """
        proof = parse_directives(final).get("rspauth", "")
        if not self._proof or not hmac.compare_digest(proof.encode(), self._proof.encode()):
            raise AuthFailedError("SASL: the server did not prove that it knows the user; it may be an impostor")

    def _secret(self, realm: str, nonce: str, charset: str) -> bytes:
        user = f"{self._auth.user}:{realm}:{self._auth.password}"
        # RFC 2831, 2.1.2.1: text that ISO 8859-1 can hold is hashed as such, whatever the charset.
        try:
            raw = user.encode("latin-1")
        except UnicodeEncodeError:
            raw = user.encode(charset, "replace")
        a1 = _md5(raw) + f":{nonce}:{self._cnonce}".encode(charset)
        return _md5(a1).hex().encode()

    def _digest(self, secret: bytes, nonce: str, a2: str) -> str:
        hashed = _md5(a2.encode()).hex()
        return _md5(secret + f":{nonce}:00000001:{self._cnonce}:auth:{hashed}".encode()).hex()


def parse_directives(challenge: bytes) -> dict[str, str]:
    """Read ``name=value`` and ``name="value"``, separated by commas.

    Raises:
        AuthFailedError: the text has another form, or is longer than the RFC allows.
    """
    text = challenge.decode("utf-8", "replace")
    directives: dict[str, str] = {}
    offset = 0
    while offset < len(text):
        match = _DIRECTIVE.match(text, offset) if len(challenge) <= _MAX_CHALLENGE else None
        if match is None:
            raise AuthFailedError("SASL: the server's challenge cannot be read")
        name, quoted, bare = match.groups()
        directives.setdefault(name.lower(), re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else bare)
        offset = match.end()
    return directives


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _md5(data: bytes) -> bytes:
    # The mechanism fixes the hash; the flag permits it where policy bans MD5 for security.
    return hashlib.md5(data, usedforsecurity=False).digest()
