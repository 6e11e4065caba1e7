"""The supervisor of several worker processes."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.worker.processes import supervise

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("attempt", range(5))
async def test_processes_that_end_at_the_same_moment_end_the_command_with_their_status(
    tmp_path: Path, attempt: int
) -> None:
    """All wait for one end of file, so while the first is reaped, others have ended too."""
    gate = tmp_path / f"gate{attempt}"
    os.mkfifo(gate)
    waiting = ["sh", "-c", 'read line < "$1"; exit 3', "sh", str(gate)]
    opening = [
        sys.executable,
        "-c",
        "import os, sys, time; time.sleep(0.3); open(sys.argv[1], 'w'); sys.exit(3)",
        str(gate),
    ]
    assert await supervise([*[waiting] * 12, opening]) == 3
