from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiozkqueue.zookeeper import Auth, AuthFailedError
from aiozkqueue.zookeeper.sasl import DigestMd5, parse_directives

_CHALLENGE = b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,charset=utf-8'


def _example() -> DigestMd5:
    """The exchange printed in RFC 2831, section 4."""
    return DigestMd5(Auth.sasl("chris", "secret"), uri="imap/elwood.innosoft.com", cnonce="OA6MHXh6VqTrRk")


def test_the_example_exchange_of_the_rfc_is_reproduced() -> None:
    exchange = _example()
    response = parse_directives(exchange.respond(_CHALLENGE))
    assert response == {
        "charset": "utf-8",
        "username": "chris",
        "realm": "elwood.innosoft.com",
        "nonce": "OA6MG9tEQGm2hh",
        "nc": "00000001",
        "cnonce": "OA6MHXh6VqTrRk",
        "digest-uri": "imap/elwood.innosoft.com",
        "response": "d388dad90d4bbd760a152321f2143af7",
        "qop": "auth",
    }
    exchange.verify(b"rspauth=ea40f60335c427b5527b84dbabcdfffd")


@pytest.mark.parametrize("proof", [b"", b"rspauth=", b"rspauth=ea40f60335c427b5527b84dbabcdfffe", b"other=1"])
def test_a_server_that_does_not_know_the_password_is_refused(proof: bytes) -> None:
    exchange = _example()
    exchange.respond(_CHALLENGE)
    with pytest.raises(AuthFailedError):
        exchange.verify(proof)


def test_a_proof_before_the_challenge_is_refused() -> None:
    with pytest.raises(AuthFailedError):
        _example().verify(b'rspauth=""')


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"realm=",
        b'nonce="1"',
        b'nonce="1",algorithm=md5',
        b'nonce="1",algorithm=md5-sess,qop="auth-conf"',
        b'nonce="1',
        b"\xff\xfe",
        b'nonce="\xff",algorithm=md5-sess',
        'nonce="1",algorithm=md5-sess,realm="Ж"'.encode(),
        b'nonce="' + b"1" * 4000 + b'",algorithm=md5-sess',
    ],
)
def test_a_challenge_that_cannot_be_answered_is_refused(challenge: bytes) -> None:
    with pytest.raises(AuthFailedError, match="SASL"):
        _example().respond(challenge)


def test_a_user_name_outside_the_servers_alphabet_is_refused() -> None:
    with pytest.raises(AuthFailedError, match="UTF-8"):
        DigestMd5(Auth.sasl("Ж", "p")).respond(b'nonce="1",algorithm=md5-sess')


@given(st.binary(max_size=300))
def test_any_challenge_is_answered_or_refused_without_revealing_a_secret(challenge: bytes) -> None:
    exchange, said = DigestMd5(Auth.sasl("chris", "t0p-s3cret")), b""
    try:
        said = exchange.respond(challenge)
    except AuthFailedError as error:
        said = str(error).encode()
    assert b"t0p-s3cret" not in said


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1))
def test_a_user_name_can_contain_quotes_and_other_alphabets(name: str) -> None:
    user = name.replace(":", "") or "x"
    answer = DigestMd5(Auth.sasl(user, "p")).respond(b'nonce="1",algorithm=md5-sess,charset=utf-8')
    if len(answer) <= 2048:
        assert parse_directives(answer)["username"] == user
