"""TLS errors have advice that depends on their cause."""

from __future__ import annotations

import ssl

import pytest

from aiozkqueue.zookeeper.tls_errors import described


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (9, "compare the clocks"),
        (10, "renew the server's certificate"),
        (18, "does not trust the authority"),
        (20, "does not trust the authority"),
        (62, "the names or addresses that are in their certificates"),
        (64, "the names or addresses that are in their certificates"),
    ],
)
def test_a_certificate_of_a_server_that_is_not_accepted_has_advice(code: int, advice: str) -> None:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code = code
    assert described(error).startswith("certificate verify failed; ")
    assert advice in described(error)


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "the server requires a client certificate"),
        ("SSLV3_ALERT_CERTIFICATE_UNKNOWN", "the server rejects the client's certificate"),
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED", "the server rejects the client's certificate"),
        ("SSLV3_ALERT_BAD_CERTIFICATE", "the server rejects the client's certificate"),
        ("TLSV1_ALERT_UNKNOWN_CA", "the server rejects the client's certificate"),
        ("SSLV3_ALERT_HANDSHAKE_FAILURE", "accepts no cipher"),
        ("TLSV1_ALERT_PROTOCOL_VERSION", "no version of TLS in common"),
        ("WRONG_VERSION_NUMBER", "is that a TLS port?"),
    ],
)
def test_an_alert_of_the_server_has_advice(reason: str, advice: str) -> None:
    error = ssl.SSLError(1, f"[SSL: {reason}] alert")
    error.reason = reason
    assert described(error).startswith(f"[SSL: {reason}] alert; ")
    assert advice in described(error)


@pytest.mark.parametrize("error", [ssl.SSLError(1, "odd"), OSError(111, "refused"), TimeoutError()])
def test_other_errors_keep_their_texts(error: OSError) -> None:
    assert described(error) == str(error)
