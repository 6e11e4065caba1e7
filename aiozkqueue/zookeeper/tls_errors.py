"""Describes the errors of TLS by their causes, and names the remedy. Pure."""

from __future__ import annotations

import re
import ssl
from typing import Final

_REJECTED: Final = (
    "the server rejects the client's certificate: load one that is valid, and of an authority that the server trusts"
)
#: By OpenSSL's code of the verification: why the certificate of the server is not accepted.
_OF_SERVER: Final = {
    9: "the server's certificate is not valid yet: compare the clocks of both machines",
    10: "renew the server's certificate and restart the server",
    **dict.fromkeys(
        (18, 19, 20, 21),
        "the context does not trust the authority of the server's certificate: load that authority "
        "(ssl.create_default_context(cafile=...), --tls-ca)",
    ),
    **dict.fromkeys((62, 64), "give the servers the names or addresses that are in their certificates"),
}
#: By the reason that OpenSSL names: the first pattern that is found.
_OF_CLIENT: Final = (
    ("CERTIFICATE_REQUIRED", "the server requires a client certificate: load one (load_cert_chain, --tls-cert)"),
    ("ALERT_(BAD_CERT|UNSUPPORTED_CERT|CERTIFICATE_(REVOKED|EXPIRED|UNKNOWN)|UNKNOWN_CA|ACCESS_DENIED)", _REJECTED),
    (
        "HANDSHAKE_FAILURE",
        "the server accepts no cipher of the client, or requires a client certificate (load_cert_chain, --tls-cert)",
    ),
    ("PROTOCOL_VERSION|UNSUPPORTED_PROTOCOL", "the server and the client have no version of TLS in common"),
    ("WRONG_VERSION_NUMBER", "is that a TLS port?"),
)


def advice_on(error: Exception) -> str | None:
    """Return the remedy of an error of TLS; None: it is another error, or the remedy is unknown."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _OF_SERVER.get(error.verify_code)
    if isinstance(error, ssl.SSLError):
        reason = getattr(error, "reason", None) or ""  # Python itself raises some without it
        return next((advice for pattern, advice in _OF_CLIENT if re.search(pattern, reason)), None)
    return None


def described(error: Exception) -> str:
    """Return the text of an error of a connection, for TLS with advice; "" for an error without a text."""
    advice = advice_on(error)
    return f"{error}" if advice is None else f"{error}; {advice}"
