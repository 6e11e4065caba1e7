"""Puts without options, which are kept as arrays, are equivalent to a list of the same puts."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiozkqueue.codec import BytesCodec, encode_all
from aiozkqueue.layout import IdSource
from aiozkqueue.queue.commit.bundle_puts import _runs
from aiozkqueue.queue.commit.create_items import CreateItems, live_of, weigh_puts
from aiozkqueue.queue.commit.put import PlainPuts, columns_of
from aiozkqueue.queue.state.queue_state import QueueState, SessionLinks

if TYPE_CHECKING:
    from aiozkqueue.runtime.clock import ServerClock
    from aiozkqueue.zookeeper import ZooKeeper

LINKS = SessionLinks(
    cast("ServerClock", None), Random(0), lambda _: (), lambda *_: None, cast("Any", None), cast("Any", None)
)
STATE = QueueState(cast("ZooKeeper", None), "/root", "jobs", LINKS)
BODIES = st.lists(st.binary(max_size=2000), min_size=1, max_size=20)
BATCHES = st.sampled_from(["", f"b{'a' * 32}-"])


def plain(bodies: list[bytes], batch: str = "", seed: int = 0) -> PlainPuts:
    """Return puts of these bodies."""
    return PlainPuts(STATE, IdSource(Random(seed).randbytes).take(len(bodies)), bodies, batch)


@given(BODIES, BATCHES, st.integers(-20, 20), st.integers(-20, 20))
def test_puts_in_arrays_are_a_sequence_of_puts(bodies: list[bytes], batch: str, start: int, end: int) -> None:
    puts = plain(bodies, batch)
    listed = list(puts)
    assert [put.data for put in listed] == bodies
    assert [put.prefix for put in listed] == [f"item-{batch}i{put.id}-" for put in listed]
    assert [puts[index] for index in range(len(puts))] == listed
    assert list(puts[start:end]) == listed[start:end]
    assert weigh_puts(puts) == weigh_puts(listed)
    assert columns_of(puts) == columns_of(listed)
    assert list(live_of(puts)) == list(live_of(listed))
    as_arrays, as_list = CreateItems(puts), CreateItems(listed)
    assert (as_arrays.weight, as_arrays.queues) == (as_list.weight, as_list.queues)


@given(BODIES, BATCHES)
def test_puts_in_arrays_are_bundled_as_a_list_of_them_is(bodies: list[bytes], batch: str) -> None:
    puts = plain(bodies, batch)
    assert _runs(puts, *columns_of(puts)) == _runs(list(puts), *columns_of(puts))


@given(BODIES, st.integers(0, 20))
def test_stored_puts_are_removed_from_the_beginning(bodies: list[bytes], stored: int) -> None:
    puts = plain(list(bodies))
    listed = list(puts)
    part = puts[:]
    del part[:stored]
    assert (list(part), list(puts)) == (listed[stored:], listed)


def test_more_puts_are_appended() -> None:
    puts, more = plain([b"1"]), plain([b"2", b"3"], seed=1)
    listed = [*puts, *more]
    puts.extend(more)
    assert list(puts) == listed


def test_values_that_are_not_bytes_objects_are_copied() -> None:
    text = bytearray(b"1")
    assert encode_all(BytesCodec(), [text, memoryview(b"2"), b"3"], "jobs") == [b"1", b"2", b"3"]
    with pytest.raises(Exception, match=r"takes bytes, not str; .*session\.queue\('jobs', str\)"):
        encode_all(BytesCodec(), [b"1", "2"], "jobs")
