"""The encoders are tested against aiozk's records, and the decoders with known replies and random bytes."""

from __future__ import annotations

import struct
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from aiozk import protocol
from aiozk.protocol.transaction import MultiHeader
from hypothesis import given
from hypothesis import strategies as st

from aiozkqueue.zookeeper import (
    Acl,
    BadVersionError,
    Check,
    Create,
    Delete,
    MultiError,
    Node,
    Operation,
    ProtocolError,
    Result,
    SessionExpiredError,
    SetData,
    Stat,
    ZooKeeperError,
    errors,
    records,
    wire,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_ACL = (Acl.all("world", "anyone"), Acl.read("digest", "ü:x"))
_ACL_BYTES = wire.encode_acl(_ACL)

_names = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=20)
_paths = st.lists(_names, max_size=4).map(lambda names: "/" + "/".join(names))
_versions = st.integers(-1, 2**31 - 1)
_operations = st.lists(
    st.one_of(
        st.builds(Create, _paths, st.binary(max_size=50), st.booleans(), st.booleans(), st.booleans()),
        st.builds(Delete, _paths, _versions),
        st.builds(SetData, _paths, st.binary(max_size=50), _versions),
        st.builds(Check, _paths, _versions),
    ),
    max_size=8,
)
_longs, _ints = st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1)
_stats = st.builds(Stat, _longs, _longs, _longs, _longs, _ints, _ints, _ints, _longs, _ints, _ints, _longs)
_chroots = st.sampled_from(["", "/app", "/ä/b"])


def _text(value: str) -> bytes:
    return struct.pack(">i", len(value.encode())) + value.encode()


def _bytes(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def _stat(stat: Stat) -> bytes:
    return struct.pack(">qqqqiiiqiiq", *stat)


def _head(kind: int, *, done: bool = False) -> bytes:
    return struct.pack(">i?i", kind, done, -1 if done else 0)


_END = _head(-1, done=True)


def _refused(codes: Sequence[int]) -> bytes:
    return b"".join(_head(-1) + struct.pack(">i", code) for code in codes) + _END


@given(_operations, _chroots)
def test_aiozk_reads_a_multi_with_the_same_operations(operations: list[Operation], chroot: str) -> None:
    body = wire.multi(operations, chroot=chroot, acl=_ACL_BYTES).body
    by_type = {
        1: protocol.CreateRequest,
        19: protocol.CreateRequest,
        2: protocol.DeleteRequest,
        5: protocol.SetDataRequest,
        13: protocol.CheckVersionRequest,
    }
    assert struct.unpack_from(">i", body) == (14,)
    offset = 4
    header: Any
    record: Any
    for operation in operations:
        header, offset = MultiHeader.parse(body, offset)
        record, offset = by_type[header.type].parse(body, offset)
        assert (header.done, header.error) == (False, -1)
        assert record.path == (chroot if operation.path == "/" and chroot else chroot + operation.path)
        if isinstance(operation, Create):
            assert [(a.perms, a.id.scheme, a.id.id) for a in record.acl] == [
                (int(a.permissions), a.scheme, a.id) for a in _ACL
            ]
            assert record.data == operation.data
            flags = 4 if operation.container else operation.ephemeral + 2 * operation.sequential
            assert record.flags == flags
        else:
            assert record.version == operation.version
            assert getattr(record, "data", None) == getattr(operation, "data", None)
    assert body[offset:] == struct.pack(">ibi", -1, 1, -1)


@given(_operations, _chroots)
def test_the_size_of_a_multi_is_known_without_building_it(operations: list[Operation], chroot: str) -> None:
    request = wire.multi(operations, chroot=chroot, acl=_ACL_BYTES)
    assert wire.multi_size(operations, chroot=chroot, acl=_ACL_BYTES) == request.size == len(request.body) + 4


@given(_operations, _chroots, st.data())
def test_the_results_of_a_multi_are_in_order_and_have_the_actual_names(
    operations: list[Operation], chroot: str, data: st.DataObject
) -> None:
    reply, expected = b"", list[Result]()
    for operation in operations:
        if isinstance(operation, Create):
            path = operation.path + "0000000042" * operation.sequential
            with_stat = operation.container or data.draw(st.booleans())
            reply += _head(15 if with_stat else 1) + _text(chroot + path)
            reply += _stat(data.draw(_stats)) if with_stat else b""
            expected.append(path)
        elif isinstance(operation, SetData):
            stat = data.draw(_stats)
            reply += _head(5) + _stat(stat)
            expected.append(stat)
        else:
            reply += _head(2 if isinstance(operation, Delete) else 13)
            expected.append(None)
    decode = wire.multi(operations, chroot=chroot, acl=_ACL_BYTES).decode
    assert decode(b"header" + reply + _END, 6) == expected
    some = data.draw(st.integers(0, len(operations)))
    decode = wire.multi(operations, chroot=chroot, acl=_ACL_BYTES, results=some).decode
    assert decode(b"header" + reply + _END, 6) == expected[:some]


@pytest.mark.parametrize("results", [None, 0, 1])
def test_a_refused_multi_names_the_first_operation_that_failed_and_its_path(results: int | None) -> None:
    operations: list[Operation] = [Check("/a"), Create("/b"), Delete("/c", 3), Delete("/d")]
    decode = wire.multi(operations, chroot="", acl=_ACL_BYTES, results=results).decode
    with pytest.raises(MultiError, match="operation 2 of the multi: /c") as refused:
        decode(_refused([0, 0, -103, -2]), 0)
    assert refused.value.index == 2
    assert isinstance(refused.value.error, BadVersionError)
    assert refused.value.error.path == "/c"


def test_a_multi_refused_for_an_expired_session_names_no_operation() -> None:
    """A server that closes the session reports it inside the results of the multi."""
    decode = wire.multi([Create("/a"), Delete("/b")], chroot="", acl=_ACL_BYTES).decode
    with pytest.raises(SessionExpiredError):
        decode(_refused([-112, -2]), 0)


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        _END,
        _refused([0]),
        _refused([-103, -2, -2]),
        _head(1) + _text("/a"),
        _head(1) + struct.pack(">i", 2**31 - 1),
        _head(1) + struct.pack(">i", -2),
        _head(1) + _bytes(b"\xff"),
        _head(99) * 2 + _END,
    ],
)
def test_a_multi_reply_that_does_not_match_its_request_is_refused(reply: bytes) -> None:
    with pytest.raises((ProtocolError, MultiError)):
        wire.multi([Check("/a"), Check("/b")], chroot="", acl=_ACL_BYTES).decode(reply, 0)


@given(st.lists(st.one_of(st.none(), st.builds(Node, st.binary(max_size=50), _stats)), max_size=6))
def test_a_multi_read_returns_each_node_or_none(nodes: list[Node | None]) -> None:
    reply = b"".join(
        _head(-1) + struct.pack(">i", -101) if node is None else _head(4) + _bytes(node.data) + _stat(node.stat)
        for node in nodes
    )
    decode = wire.multi_read([f"/{n}" for n in range(len(nodes))], chroot="/x").decode
    assert decode(reply + _END, 0) == nodes
    for cut in range(len(reply + _END)):
        with pytest.raises(ProtocolError):
            decode((reply + _END)[:cut], 0)


def test_a_multi_read_without_permission_raises_an_error() -> None:
    decode = wire.multi_read(["/a", "/b"], chroot="").decode
    with pytest.raises(ZooKeeperError, match="/b: not allowed"):
        decode(_refused([-101, -102]), 0)


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(struct.pack(">iiqiiii", 30, -1, -1, 0, -1, 3, 2) + b"/b", id="of the session"),
        pytest.param(struct.pack(">iiqiiii", 31, -1, -1, 0, 1, 3, 2) + b"/bc", id="another length"),
        pytest.param(struct.pack(">iiqiiii", 27, -1, -1, 0, 1, 3, -1), id="no path"),
        pytest.param(struct.pack(">iiqiiii", 30, -2, -1, 0, 1, 3, 2) + b"/b", id="a pong"),
        pytest.param(struct.pack(">iiqiiii", 30, -1, -1, 0, 1, 3, 2) + b"/", id="incomplete"),
        pytest.param(struct.pack(">iiqiiii", 31, -1, -1, 0, 1, 3, 3) + "/\u00e9".encode(), id="not ASCII"),
    ],
)
def test_a_run_of_events_ends_at_a_frame_that_is_not_a_plain_event(frame: bytes) -> None:
    first = struct.pack(">iiqiiii", 30, -1, -1, 0, 1, 3, 2) + b"/a"
    assert wire.decode_events(b"\0" + first + first + frame, 1) == ([wire.Event(1, 3, "/a")] * 2, 1 + 2 * len(first))


@given(st.lists(_names, max_size=10))
def test_children_are_decoded_and_a_truncated_reply_is_refused(names: list[str]) -> None:
    decode = wire.get_children("/", chroot="").decode
    reply = struct.pack(">i", len(names)) + b"".join(map(_text, names))
    assert decode(reply, 0) == names
    for cut in range(len(reply)):
        with pytest.raises(ProtocolError):
            decode(reply[:cut], 0)


@given(
    st.integers(1, 130).flatmap(
        lambda size: st.lists(st.text("ab\0\4\5\x7fé", min_size=size, max_size=size), min_size=2, max_size=5)
    )
)
def test_children_with_names_of_equal_length_are_decoded_too(names: list[str]) -> None:
    decode = wire.get_children("/", chroot="").decode
    reply = struct.pack(">i", len(names)) + b"".join(map(_text, names))
    assert decode(reply, 0) == names


@given(st.binary(max_size=200))
def test_random_bytes_are_either_decoded_or_refused(noise: bytes) -> None:
    operations: list[Operation] = [Create("/a"), SetData("/b", b""), Delete("/c")]
    decoders: list[Any] = [
        wire.get_data("/", chroot="").decode,
        wire.exists("/", chroot="").decode,
        wire.get_children("/", chroot="").decode,
        wire.multi_read(["/a", "/b"], chroot="").decode,
        wire.multi(operations, chroot="", acl=_ACL_BYTES).decode,
        wire.decode_event,
        wire.decode_events,
        wire.decode_token,
        lambda reply, _offset: wire.decode_connected(reply),
    ]
    for decode in decoders:
        try:
            decode(noise, 0)
        except ZooKeeperError:
            continue


def test_a_false_count_allocates_no_memory() -> None:
    decode = wire.get_children("/", chroot="").decode
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="2147483647"):
            decode(struct.pack(">i", 2**31 - 1) + b"\0" * 100, 0)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("path", ["", "a", "a/b"])
def test_a_path_that_does_not_start_at_the_root_raises_an_error(path: str) -> None:
    with pytest.raises(ValueError, match="starts with '/'"):
        wire.multi([Check(path)], chroot="", acl=_ACL_BYTES)
    with pytest.raises(ValueError, match="starts with '/'"):
        wire.full_path(path, "/app")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (-101, errors.NoNodeError),
        (-102, errors.NoAuthError),
        (-103, errors.BadVersionError),
        (-110, errors.NodeExistsError),
        (-111, errors.NotEmptyError),
        (-112, errors.SessionExpiredError),
        (-114, errors.InvalidAclError),
        (-115, errors.AuthFailedError),
        (-120, errors.LocalSessionError),
        (-124, errors.AuthFailedError),
        (-125, errors.QuotaExceededError),
        (-127, errors.ThrottledError),
        (-999, errors.ServerError),
    ],
)
def test_each_error_code_has_its_exception(code: int, error: type[ZooKeeperError]) -> None:
    assert type(wire.error_of(code, "/p")) is error


def test_an_error_names_its_code_as_the_servers_do() -> None:
    assert str(wire.error_of(-5, "/p")) == "ZooKeeper error -5 (MARSHALLINGERROR) at /p"
    assert str(wire.error_of(-999)) == "ZooKeeper error -999 (a code that is unknown to this program)"


def test_a_client_asks_for_a_server_that_is_not_in_read_only_mode() -> None:
    """Its first packet ends with the field ``readOnly``. A server in that mode closes the connection."""
    packet = records.connect(session_id=1, password=b"p" * 16, timeout=10.0, last_zxid=2)
    assert packet.endswith(b"p" * 16 + b"\0")
