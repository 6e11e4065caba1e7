"""The files that a put passes, and a take with its commit, are those that ARCHITECTURE.md lists."""

from __future__ import annotations

import asyncio
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

PACKAGE = Path(zq.__file__).parent
ARCHITECTURE = (PACKAGE.parent / "ARCHITECTURE.md").read_text()

pytestmark = pytest.mark.timeout(120)


def listed(way: str) -> set[str]:
    """Return the files of the list that begins with this marker and ends with an empty line."""
    return set(re.findall(r"`([\w/]+\.py)`", ARCHITECTURE.partition(f"<!-- {way} -->\n")[2].partition("\n\n")[0]))


@contextmanager
def traced() -> Iterator[set[str]]:
    """Record the files of the package in which a function is called."""
    files: set[str] = set()

    def called(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (path := Path(frame.f_code.co_filename)).is_relative_to(PACKAGE):
            files.add(path.relative_to(PACKAGE).as_posix())

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        yield files
    finally:
        sys.setprofile(before)


@pytest.mark.parametrize("way", ["put", "take"])
async def test_a_message_passes_through_the_files_that_the_map_lists(way: str, zookeeper: str) -> None:
    async with zq.connect(zookeeper, root=f"/ways-{way}", session_timeout=20) as session:
        jobs = session.queue("jobs")
        await jobs.put_many([b"1", b"2", b"3", b"4"])
        async with session.transaction() as tx:
            assert await tx.take(jobs) is not None
        await asyncio.sleep(0)
        with traced() as files:
            if way == "put":
                await jobs.put(b"5")
            else:
                async with session.transaction() as tx:
                    assert await tx.take(jobs) is not None
        # Tasks of the session that do not concern the message may run meanwhile.
        passed = {file for file in files if not file.startswith(("operations/", "zookeeper/heartbeat"))}
        more = listed("look") if way == "take" else set[str]()  # the machine may have stalled for a second
        assert passed - more <= listed(way), passed - more - listed(way)
        assert listed(way) <= passed, listed(way) - passed
