"""New environments with installed packages, made without downloads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
NAME = "aiozkqueue"


def output(*command: str | Path, cwd: Path = ROOT, status: int = 0, path: str | None = None) -> str:
    """Run a program, and return its output. It can import installed packages and those on ``path``."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment | ({} if path is None else {"PYTHONPATH": path}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == status, done.stdout
    return done.stdout


def build(kind: str, source: Path, folder: Path) -> Path:
    """Build a distribution of the source tree, as a PEP 517 front end does."""
    hook = f"import sys; from hatchling.build import build_{kind}; print(build_{kind}(sys.argv[1]))"
    return folder / output(sys.executable, "-c", hook, folder, cwd=source).split()[-1]


def members(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def required(name: str) -> set[str]:
    """Return the dependencies of a distribution without extras, including indirect ones."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        for text in distribution(waiting.pop()).requires or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                dependency = canonicalize_name(requirement.name)
                if dependency not in found:
                    found.add(dependency)
                    waiting.append(dependency)
    return found


def created(folder: Path, *wheels: Path, also: tuple[str, ...] = ()) -> Path:
    """Create an environment with wheels, their dependencies and other distributions; return its folder of programs."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in {*required(NAME), *also}:
        for file in distribution(name).files or []:
            if ".." not in file.parts and file.suffix != ".pyc":
                target = site / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(file.locate()), target)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(folder / "bin" / "python")]
    output(*pip, "install", "--quiet", "--no-index", *wheels)
    assert "No broken requirements" in output(*pip, "check")
    return folder / "bin"
