"""The public types: mypy and pyright accept the programs that users write first, and refuse typical mistakes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docsite.public import by_home

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs.py", HERE / "parts.py"
MISUSES = HERE / "misuses.py", HERE / "parts_misuses.py"

REFUSED = {
    f"{file.name}:{number}": line.partition("# refused")[2].startswith(" by pyright")
    for file in MISUSES
    for number, line in enumerate(file.read_text().splitlines(), start=1)
    if "# refused" in line
}
BY_BOTH = {place for place, by_pyright_alone in REFUSED.items() if not by_pyright_alone}
BY_PYRIGHT = set(REFUSED)

pytestmark = pytest.mark.timeout(240)


def output(*command: str) -> str:
    finished = subprocess.run(command, stdout=subprocess.PIPE, cwd=HERE, text=True, check=False)
    assert finished.returncode in {0, 1}, finished.stdout
    return finished.stdout


def mypy(programs: tuple[Path, ...], cache: Path) -> dict[str, str]:
    """Errors by file and line."""
    printed = output(
        sys.executable,
        *("-m", "mypy", "--strict", "--python-version=3.11", "--config-file=", f"--cache-dir={cache}"),
        *("--hide-error-context", "--no-error-summary", "--follow-imports=silent", *map(str, programs)),
    )
    return {
        f"{Path(found[1]).name}:{found[2]}": found[3]
        for found in re.finditer(r"^(\S+?):(\d+): error: (.*)$", printed, re.MULTILINE)
    }


def pyright(programs: tuple[Path, ...], folder: Path) -> dict[str, str]:
    """Errors by file and line."""
    for program in programs:
        shutil.copy(program, folder)
    (folder / "pyrightconfig.json").write_text(
        json.dumps(
            {
                "include": [program.name for program in programs],
                "typeCheckingMode": "strict",
                "pythonVersion": "3.11",
                "enableExperimentalFeatures": True,  # TypeForm
                "reportDeprecated": "none",  # the types of contextlib in typeshed change from month to month
            }
        )
    )
    printed = output(
        sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", "--project", str(folder)
    )
    return {
        f"{Path(found['file']).name}:{found['range']['start']['line'] + 1}": found["message"]
        for found in json.loads(printed)["generalDiagnostics"]
        if found["severity"] == "error"
    }


@pytest.fixture(scope="module")
def found_by_pyright(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """All errors of pyright. One run checks all files, because it spends most of its time on what they import."""
    return pyright((*PROGRAMS, *MISUSES), tmp_path_factory.mktemp("pyright"))


def errors_in(files: tuple[Path, ...], found: dict[str, str]) -> dict[str, str]:
    """Return the errors in some of the files."""
    names = {file.name for file in files}
    return {place: error for place, error in found.items() if place.partition(":")[0] in names}


@pytest.fixture
def cache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    kept: pytest.Cache | None = getattr(request.config, "cache", None)  # None under -p no:cacheprovider
    return tmp_path_factory.mktemp("mypy") if kept is None else kept.mkdir("mypy")


def test_mypy_accepts_the_programs(cache: Path) -> None:
    assert mypy(PROGRAMS, cache) == {}


def test_pyright_accepts_the_programs(found_by_pyright: dict[str, str]) -> None:
    assert errors_in(PROGRAMS, found_by_pyright) == {}


def test_mypy_refuses_exactly_the_misuses(cache: Path) -> None:
    refused = mypy(MISUSES, cache)
    # It may also refuse the lines that only pyright has to refuse, and nothing else.
    assert BY_BOTH <= set(refused) <= BY_PYRIGHT, refused


def test_pyright_refuses_exactly_the_misuses(found_by_pyright: dict[str, str]) -> None:
    refused = errors_in(MISUSES, found_by_pyright)
    assert set(refused) == BY_PYRIGHT, refused


@pytest.mark.slow
def test_each_public_name_has_a_type_that_every_checker_understands_the_same() -> None:
    here = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(HERE.parents[1]),
    }
    checked = subprocess.run(
        [sys.executable, "-m", "pyright", "--verifytypes", "aiozkqueue", "--ignoreexternal", "--outputjson"],
        stdout=subprocess.PIPE,
        cwd=HERE,
        env=os.environ | here,
        text=True,
        check=False,
    )
    symbols = json.loads(checked.stdout)["typeCompleteness"]["symbols"]
    assert len(symbols) > 4000
    untold = [
        symbol["name"]
        for symbol in symbols
        if any(
            "annotation" in diagnostic["message"] or "unknown for" in diagnostic["message"]
            for diagnostic in symbol["diagnostics"]
        )
    ]
    public = by_home()
    assert [name for name in untold if name in public or name.rpartition(".")[0] in public] == []


def test_the_number_of_checked_misuses_is_pinned() -> None:
    assert len(BY_BOTH) == 38
    assert len(BY_PYRIGHT) == 41
