"""The oldest dependencies that pyproject.toml allows: ``python -m tests.packaging.oldest FOLDER`` installs them there.

These are the required dependencies and those of the extras that consist of Python packages. Spark's are left out,
because of their size, and uvloop, which has no wheels of old versions for new versions of Python.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from tests.packaging.environments import ROOT

#: The extras whose oldest dependencies are tested.
EXTRAS = ("cli", "schedule", "fastapi", "http", "observability", "reload")


def oldest() -> dict[str, str]:
    """Return the oldest allowed version of each dependency, by its name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups: dict[str, list[str]] = project["optional-dependencies"]
    # The tests of tracing also need the SDK, whose versions go with those of the API.
    related = [text for text in groups["dev"] if text.startswith("opentelemetry-")]
    texts = [*project["dependencies"], *(text for extra in EXTRAS for text in groups[extra]), *related]
    bounds: dict[str, str] = {}
    for requirement in map(Requirement, texts):
        (bound,) = [part.version for part in requirement.specifier if part.operator == ">="]
        bounds[requirement.name] = bound
    return bounds


def main(folder: Path) -> int:
    """Install the dependencies; return the status of pip."""
    shutil.rmtree(folder, ignore_errors=True)
    pinned = [f"{name}=={version}" for name, version in oldest().items()]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--target", str(folder)]
    done = subprocess.run([*pip, *pinned], capture_output=True, text=True, check=False)
    if done.returncode:  # otherwise it only complains that these versions do not go with the installed packages
        sys.stderr.write(done.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
