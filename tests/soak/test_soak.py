"""A soak of a few minutes, as `make soak` runs it: ``SOAK_SECONDS=n`` sets the number of seconds with faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

REPOSITORY = Path(__file__).parents[2]
SECONDS = float(os.environ.get("SOAK_SECONDS", "180"))
#: The additional seconds for the start, the repair, the emptying of the queues, and the checks.
OTHER_STEPS = 420.0


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + OTHER_STEPS)
def test_faults_of_real_servers_and_clients_lose_duplicate_or_block_no_message(
    record_property: Callable[[str, object], None],
) -> None:
    command = [sys.executable, "-m", "tests.soak", "--minutes", str(SECONDS / 60), "--json"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    figures = json.loads(done.stdout)
    record_property("figures", f"soak: {figures}")
    assert figures["violations"] == figures["lost"] == figures["doubled"] == figures["stuck"] == 0
    assert figures["messages put"] > 3 * SECONDS
    assert 0 < figures["messages in bundles"] < figures["messages put"]
    assert figures["sessions expired"] > 0
    if SECONDS >= 120:
        assert figures["elections"] > 0
        assert set(figures["faults"]) >= {
            "leader killed",
            "client killed",
            "client stopped",
            "blackout",
            "claims forced open",
        }
