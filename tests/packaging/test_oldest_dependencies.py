"""The oldest dependencies that pyproject.toml allows: parts of the tests run again with them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.environments import ROOT
from tests.packaging.oldest import oldest

_VERSIONS = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"


@pytest.fixture(scope="module")
def installed() -> Path:
    """The folder in which `make test` has installed them."""
    folder = Path(sys.prefix) / "oldest"
    if not folder.exists():
        pytest.skip("the oldest dependencies are not installed; `make test` installs them from PyPI")
    return folder


def run(folder: Path, *arguments: str, **environment: str) -> str:
    """Run Python with the packages in a folder, and return its output."""
    path = os.pathsep.join([str(ROOT), str(folder)])
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def passed(folder: Path, *tests: str, **environment: str) -> None:
    options = ("-q", "-p", "no:cacheprovider", "-m", "not slow")
    assert " passed" in run(folder, "-m", "pytest", *options, *tests, **environment)


def test_the_installed_dependencies_are_the_oldest_that_are_allowed(installed: Path) -> None:
    bounds = oldest()
    found = run(installed, "-c", _VERSIONS, *bounds).split()
    shortened = [version[: len(bound)] for version, bound in zip(found, bounds.values(), strict=True)]
    assert shortened == list(bounds.values())


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "part", ["::TestOneHalf", pytest.param("", marks=pytest.mark.slow)], ids=["single items", "all"]
)
def test_histories_and_payloads_are_the_same_with_the_oldest_dependencies(installed: Path, part: str) -> None:
    passed(installed, f"tests/simulation/test_histories.py{part}", "tests/unit/test_codec.py", HISTORIES="400")


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "tests",
    [
        ("tests/acceptance",),
        ("tests/unit/schedule", "tests/cli/test_moves.py", "tests/cli/test_queues_and_dead_letters.py"),
        ("tests/http/test_contract.py", "tests/http/test_figures.py", "tests/http/test_trace_context.py", "tests/web"),
        ("tests/integration/queue/test_metrics.py", "tests/integration/queue/test_tracing.py"),
    ],
    ids=["queues", "schedules and the command", "HTTP", "metrics and traces"],
)
def test_the_tests_pass_with_the_oldest_dependencies(installed: Path, tests: tuple[str, ...]) -> None:
    passed(installed, *tests)
