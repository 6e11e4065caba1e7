"""Parses a Dockerfile, and runs its steps in a folder, without a container engine and without downloads."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

#: The folders of the image to which its steps write.
FOLDERS = ("/wheels", "/opt/aiozkqueue", "/src", "/app")
#: pip installs the named packages without their dependencies and without downloads.
OFFLINE = {"PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


@dataclass
class Stage:
    """A stage of the build: its steps in order, and its settings of the program to start."""

    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def last(self, instruction: str) -> str:
        return [text for kind, text in self.steps if kind == instruction][-1]


def parse(file: Path) -> list[Stage]:
    """Return the stages of a Dockerfile."""
    text = re.sub(r"^#.*\n", "", file.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    stages: list[Stage] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        kind, _, rest = line.partition(" ")
        if kind == "FROM":
            stages.append(Stage(rest.partition(" AS ")[2]))
        elif stages:
            stages[-1].steps.append((kind, rest.strip()))
    return stages


def build(stages: list[Stage], context: Path, folder: Path) -> Path:
    """Run the steps of all stages below a folder, and return the root of the last one."""
    roots = {stage.name: folder / (stage.name or "image") for stage in stages}
    for stage in stages:
        root, folder_in_image = roots[stage.name], "/"
        for kind, text in stage.steps:
            if kind == "WORKDIR":
                folder_in_image = text
                (root / folder_in_image[1:]).mkdir(parents=True, exist_ok=True)
            elif kind == "COPY":
                source = roots[found[1]] if (found := re.match(r"--from=(\w+) ", text)) else context
                *names, target = re.sub(r"^--from=\w+ ", "", text).split()
                for name in names:
                    _copy(source / name.removeprefix("/"), root / str(Path(folder_in_image) / target)[1:], into=target)
            elif kind == "RUN":
                _run(text, root, root / folder_in_image[1:])
    return roots[stages[-1].name]


def _copy(source: Path, target: Path, into: str) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        return
    if into.endswith("/"):
        target.mkdir(parents=True, exist_ok=True)
        target /= source.name
    shutil.copy(source, target)


def _run(text: str, root: Path, folder_in_image: Path) -> None:
    command = re.sub(rf"(?<![\w/])({'|'.join(FOLDERS)})(?![\w])", lambda match: f"{root}{match[1]}", text)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | OFFLINE
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=folder_in_image,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, f"{shlex.quote(command)}: {done.stdout}{done.stderr}"
