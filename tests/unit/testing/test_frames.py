"""The frames are the same, however the network splits the bytes."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from aiozkqueue.testing.frames import FrameSplitter


@given(st.lists(st.binary(max_size=50)), st.lists(st.integers(1, 20)))
def test_frames_split_anywhere_are_reassembled_in_order_with_every_byte(frames: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
    splitter, found, rest = FrameSplitter(), [], stream
    for cut in [*cuts, len(stream)]:
        found += splitter.feed(rest[:cut])
        rest = rest[cut:]
    assert [frame for _, frame in found] == frames
    assert b"".join(whole for whole, _ in found) == stream


@given(st.binary())
def test_bytes_that_are_not_a_frame_pass_at_once_and_unchanged(rest: bytes) -> None:
    splitter = FrameSplitter()
    assert splitter.feed(b"srvr" + rest) == [(b"srvr" + rest, b"")]
    assert b"".join(whole for whole, _ in splitter.feed(b"more")) == b"more"
