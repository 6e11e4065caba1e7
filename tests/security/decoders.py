"""Every decoder of bytes that other programs may write: it reads the bytes, or refuses them with its own error."""

from __future__ import annotations

import contextlib
import zlib
from typing import TYPE_CHECKING

from pydantic import BaseModel

from aiozkqueue.bus.events import EventTypes
from aiozkqueue.errors import InvalidOptionError, PayloadError
from aiozkqueue.layout import (
    AttemptRecord,
    BundleRecord,
    HistoryRecord,
    ItemName,
    KeyHolder,
    LockRecord,
    MalformedError,
    StoredConfig,
    decode,
    decode_bundle,
    item_id,
    item_sequence,
    parse_due,
    parse_lock,
    parse_meta,
)
from aiozkqueue.layout.buses import BusRecord
from aiozkqueue.layout.filters import decode_tags
from aiozkqueue.layout.jobs import JobRecord
from aiozkqueue.layout.moves import MoveRecord
from aiozkqueue.layout.replies import MOST_REASON, Failure
from aiozkqueue.layout.samples import SampleRecord
from aiozkqueue.layout.tokens import leased_place
from aiozkqueue.zookeeper import Check, Create, ProtocolError, SetData, ZooKeeperError, wire

if TYPE_CHECKING:
    from collections.abc import Callable


def envelope(data: bytes) -> None:
    decode(data)


def config(data: bytes) -> None:
    decoded = StoredConfig.decode(data)
    assert StoredConfig.decode(decoded.encode()) == decoded


def bundle(data: bytes) -> None:
    decode_bundle(data)


def bundle_record(data: bytes) -> None:
    decoded = BundleRecord.decode(data)
    assert BundleRecord.decode(decoded.encode()) == decoded


def lock(data: bytes) -> None:
    LockRecord.decode(data)


def key_holder(data: bytes) -> None:
    KeyHolder.decode(data)


def attempts(data: bytes) -> None:
    AttemptRecord.decode(data)


def job(data: bytes) -> None:
    decoded = JobRecord.decode(data)
    # Fields that other programs added may exceed the limit of what we write.
    with contextlib.suppress(InvalidOptionError):
        assert JobRecord.decode(decoded.encode()) == decoded


def move(data: bytes) -> None:
    MoveRecord.decode(data)


def samples(data: bytes) -> None:
    for stored in (data, zlib.compress(data)):
        with contextlib.suppress(MalformedError):
            decoded = SampleRecord.decode(stored)
            assert SampleRecord.decode(decoded.encode()) == decoded


def bus(data: bytes) -> None:
    decoded = BusRecord.decode(data)
    assert BusRecord.decode(decoded.encode()) == decoded


def history(data: bytes) -> None:
    HistoryRecord.decode("1700000000000-abcdefghijklmnopqr", data)
    HistoryRecord.decode(data.decode("utf-8", "replace"), data)


def failure(data: bytes) -> None:
    decoded = Failure.decode(data)
    shown = decoded._replace(reason=decoded.reason[:MOST_REASON])
    assert Failure.decode(decoded.encode()) == shown


def tags(data: bytes) -> None:
    for value in decode_tags(data).values():
        assert isinstance(value, str | int)


def token(data: bytes) -> None:
    place = leased_place("q", data.decode("utf-8", "replace"))
    assert ".." not in place.split("/")


class _Event(BaseModel):
    number: int


_EVENTS = EventTypes(_Event)


def event(data: bytes) -> None:
    names, _, payload = data.partition(b"\n")
    for name in (names.decode("utf-8", "replace"), "_Event"):
        with contextlib.suppress(PayloadError):
            _EVENTS.decode(name, payload, "bus")


def names(data: bytes) -> None:
    text = data.decode("utf-8", "replace").replace("/", "-")
    for parse in (ItemName.parse, item_id, item_sequence, parse_lock, parse_due, parse_meta):
        parse(text)


_REPLIES: list[Callable[[bytes, int], object]] = [
    wire.multi([Create("/a"), SetData("/a", b""), Check("/a")], chroot="", acl=b"").decode,
    wire.multi_read(["/a", "/b"], chroot="").decode,
    wire.get_data("/a", chroot="").decode,
    wire.get_children("/a", chroot="").decode,
    wire.exists("/a", chroot="").decode,
    wire.decode_event,
    wire.decode_events,
    wire.decode_token,
    lambda frame, _: wire.decode_connected(frame),
]


def replies(data: bytes) -> None:
    for parse in _REPLIES:
        try:
            parse(data, 0)
        except ZooKeeperError:
            continue


DECODERS: dict[str, Callable[[bytes], None]] = {
    decoder.__name__: decoder
    for decoder in (
        envelope,
        config,
        bundle,
        bundle_record,
        lock,
        key_holder,
        attempts,
        job,
        move,
        samples,
        bus,
        history,
        failure,
        tags,
        token,
        event,
        names,
        replies,
    )
}


def typed(decoder: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """Return the decoder, with the errors that it may raise suppressed."""

    def one_input(data: bytes) -> None:
        try:
            decoder(data)
        except (MalformedError, ProtocolError):
            return

    return one_input
