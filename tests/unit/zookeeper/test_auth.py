from __future__ import annotations

import pickle

import pytest

from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.zookeeper import Acl, Auth, Permission


@pytest.mark.parametrize("auth", [Auth.digest("alice", "s3cret"), Auth.sasl("alice", "s3cret")])
def test_no_text_of_credentials_contains_the_password(auth: Auth) -> None:
    assert "alice" in repr(auth)
    assert "s3cret" not in f"{auth} {auth!r}"


@pytest.mark.parametrize("user", ["", "a:b"])
def test_a_user_that_the_scheme_cannot_encode_is_refused_without_showing_the_password(user: str) -> None:
    with pytest.raises(InvalidOptionError) as refused:
        Auth.digest(user, "s3cret")
    assert "s3cret" not in str(refused.value)


def test_credentials_and_acls_compare_by_value() -> None:
    assert Auth.digest("a", "b") == Auth.digest("a", "b")
    assert len({Acl.creator(), Acl.creator(), Acl.all("world", "anyone")}) == 2
    assert pickle.loads(pickle.dumps(Acl.read("world", "anyone"))).permissions is Permission.READ


def test_a_digest_acl_holds_the_hash_that_the_server_computes() -> None:
    # The example super:admin in ZooKeeper's documentation.
    assert Acl.digest("super", "admin").id == "super:xQJmxLMiHGwaqBvst5y6rkB6HQs="


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \n", []),
        ("digest:u:p", [Auth.digest("u", "p")]),
        ("digest:u:a pass  phrase", [Auth.digest("u", "a pass  phrase")]),
        ("digest:u:p sasl:v:q", [Auth.digest("u", "p"), Auth.sasl("v", "q")]),
        ("digest:u:a b\nsasl:v:c d\n", [Auth.digest("u", "a b"), Auth.sasl("v", "c d")]),
    ],
)
def test_credentials_are_separated_by_white_space_that_passwords_can_contain(text: str, expected: list[Auth]) -> None:
    assert Auth.parse_all(text) == expected


@pytest.mark.parametrize("text", ["s3cret", "x digest:u:s3cret", "digest:s3cret sasl:v:q"])
def test_malformed_credentials_are_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(InvalidOptionError, match="digest:USER:PASSWORD") as refused:
        Auth.parse_all(text)
    assert "s3cret" not in str(refused.value)
