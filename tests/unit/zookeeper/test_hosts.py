from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.zookeeper.hosts import Ensemble, Server, parse_hosts


@pytest.mark.parametrize(
    ("hosts", "servers", "chroot"),
    [
        ("h1", [("h1", 2181)], ""),
        ("h1:2182", [("h1", 2182)], ""),
        ("h1:2182, h2 ,10.0.0.1:3", [("h1", 2182), ("h2", 2181), ("10.0.0.1", 3)], ""),
        ("[::1]", [("::1", 2181)], ""),
        ("[fe80::1%eth0]:65535,h.example.", [("fe80::1%eth0", 65535), ("h.example.", 2181)], ""),
        ("h1,h2/app/one", [("h1", 2181), ("h2", 2181)], "/app/one"),
        ("[::1]:2182/app/", [("::1", 2182)], "/app"),
        ("zoo_1:2181/", [("zoo_1", 2181)], ""),
        (f"{'h' * 63}.{'e' * 63}", [(f"{'h' * 63}.{'e' * 63}", 2181)], ""),
    ],
)
def test_a_valid_connection_string_is_read(hosts: str, servers: list[tuple[str, int]], chroot: str) -> None:
    assert parse_hosts(hosts) == Ensemble(tuple(Server(*server) for server in servers), chroot)


@pytest.mark.parametrize(
    ("hosts", "named"),
    [
        ("", "a server is empty"),
        ("h1,,h2", "a server is empty"),
        ("h1:", "'' is not a port"),
        ("h1:x", "'x' is not a port"),
        ("h1:0", "'0' is not a port"),
        ("h1:65536", "'65536' is not a port"),
        ("h1:" + "9" * 5000, "is not a port"),
        ("h1:\u0662", "is not a port"),
        ("::1", "put an IPv6 address in brackets"),
        ("[::1", "not an address in brackets"),
        ("[::1]2181", "not an address in brackets"),
        ("[h1]:2181", "'h1' is not an IPv6 address"),
        ("h 1", "'h 1' is not a host name"),
        ("user@h1", "is not a host name"),
        ("h1-", "is not a host name"),
        ("h1,h2..example.", "'h2..example.' is not a host name"),
        ("h1," + "h" * 64, "is not a host name"),
        ("zk://h1", "leave out 'zk://'"),
        ("http://h1:2181", "leave out 'http://'"),
        ("/app", "a server is empty"),
        ("h1//app", "is not a path"),
        ("h1/app/../x", "is not a path"),
        ("h1/a\0b", "is not a path"),
        ("h1:2181/app,h2:2181/app", "give the chroot once"),
    ],
)
def test_an_invalid_connection_string_is_refused_with_its_bad_part(hosts: str, named: str) -> None:
    with pytest.raises(InvalidOptionError, match="hosts") as refused:
        parse_hosts(hosts)
    assert named in str(refused.value)


@pytest.mark.parametrize("hosts", [None, ["h1"], b"h1", 2181])
def test_hosts_that_are_not_a_string_are_refused(hosts: object) -> None:
    with pytest.raises(InvalidOptionError, match=type(hosts).__name__):
        parse_hosts(hosts)


@given(st.text())
def test_any_text_is_either_read_or_refused(hosts: str) -> None:
    try:
        ensemble = parse_hosts(hosts)
    except InvalidOptionError:
        return
    assert parse_hosts(str(ensemble)) == ensemble
