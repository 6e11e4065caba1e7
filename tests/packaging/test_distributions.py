"""The distributions that users install. The wheel is tested in an environment with only the required dependencies.

Nothing is downloaded. The dependencies are copied from the environment of the tests, and pip checks them.
"""

from __future__ import annotations

import re
import sys
import tarfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.packaging.environments import NAME, ROOT, build, created, members, output, required

# The fixtures create an environment and build three times, which takes long on a busy machine.
pytestmark = pytest.mark.timeout(240)

_PUTS_AND_TAKES = """
import asyncio, sys
import aiozkqueue as zq

async def main(hosts, root):
    async with zq.connect(hosts, root=root) as session:
        await session.queue("orders", int).put(41)
        async with session.transaction() as tx:
            message = await tx.take(session.queue("orders", int), timeout=30)
            tx.put("results", str(message.value + 1).encode())
        print(zq.__file__, (await session.queue("results").peek())[0].body)

asyncio.run(main(*sys.argv[1:]))
"""
_LOADED = """
import sys
before = {*sys.modules}
import aiozkqueue
print(*{name.partition(".")[0] for name in {*sys.modules} - before})
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the programs of a new environment."""
    return created(tmp_path_factory.mktemp("clean"), wheel)


def test_the_wheel_contains_the_package_its_types_and_its_data_but_no_tests(wheel: Path) -> None:
    names = set(members(wheel))
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {
        "aiozkqueue",
        "aiozkqueue_completion",
        "pyspark_aiozkqueue",
        "pytest_aiozkqueue",
    }
    of_the_tree = {str(file.relative_to(ROOT)) for file in ROOT.glob("*aiozkqueue*/**/*") if file.is_file()}
    assert {name for name in of_the_tree if "__pycache__" not in name} <= names
    assert {"aiozkqueue/py.typed", "aiozkqueue/http/dashboard/static/dashboard.css"} <= names


def test_the_wheel_claims_the_versions_of_python_that_the_tests_run_with(wheel: Path) -> None:
    (metadata,) = [data.decode() for name, data in members(wheel).items() if name.endswith("/METADATA")]
    claimed = re.findall(r"^Classifier: Programming Language :: Python :: (3\.\d+)$", metadata, re.MULTILINE)
    (tested,) = re.findall(r"^VERSIONS \?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert claimed == tested.split()
    assert f"Requires-Python: >={claimed[0]}\n" in metadata
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in claimed


def test_the_source_archive_contains_the_tests_and_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    archive = build("sdist", ROOT, tmp_path)
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    source = tmp_path / archive.name.removesuffix(".tar.gz")
    again = build("wheel", source, tmp_path)
    assert again.name == wheel.name
    assert members(again) == members(wheel)
    assert (source / "tests" / "packaging" / Path(__file__).name).exists()
    assert (source / "Makefile").exists()
    shipped = {file.name for file in (source / "deploy").iterdir()}
    assert {"Dockerfile", "compose.yml", "grafana", "kubernetes", "prometheus"} <= shipped


def test_puts_and_takes_work_with_the_required_dependencies_alone(
    environment: Path, zookeeper: str, queue_root: str
) -> None:
    printed = output(
        environment / "python", "-W", "error", "-c", _PUTS_AND_TAKES, zookeeper, queue_root, cwd=environment
    )
    assert printed.strip().endswith("b'42'")
    assert str(environment.parent) in printed  # not the package in the source tree


def test_importing_the_package_imports_no_installed_optional_dependency() -> None:
    owners = packages_distributions()
    loaded = output(sys.executable, "-c", _LOADED, path=str(ROOT)).split()
    assert {"aiozk", "anyio", "pydantic_core"} <= set(loaded)
    brought_by = {canonicalize_name(owner) for name in loaded for owner in owners.get(name, [])}
    assert brought_by <= required(NAME) | {NAME, "sniffio"}  # which anyio imports as well, if it is installed


def test_the_command_says_what_to_install_when_its_extra_is_missing(environment: Path) -> None:
    printed = output(environment / "aiozkqueue", "stats", "orders", status=2)
    assert printed == "aiozkqueue: typer is not installed: pip install 'aiozkqueue[cli,embedded]'\n"


@pytest.mark.parametrize(
    ("use", "module", "extra"),
    [
        ("import aiozkqueue.fastapi", "fastapi", "fastapi"),
        ("from aiozkqueue.http import create_app", "fastapi", "http"),
        ("from aiozkqueue.http import Settings", "starlette", "http"),
        ("import aiozkqueue.http.client", "httpx", "http"),
        ("import aiozkqueue.metrics", "prometheus_client", "observability"),
        ("import aiozkqueue.tracing", "opentelemetry", "observability"),
        ("import aiozkqueue.spark", "pyspark", "spark"),
        ("from aiozkqueue.schedule.cron import Cron; Cron('* * * * *')", "cronsim", "schedule"),
    ],
)
def test_a_missing_extra_raises_an_error_that_names_it(environment: Path, use: str, module: str, extra: str) -> None:
    program = (
        "from aiozkqueue.errors import MissingExtraError\n"
        f"try: {use}\n"
        "except ImportError as error: print(repr(error.name), isinstance(error, MissingExtraError), error)"
    )
    printed = output(environment / "python", "-W", "error", "-c", program)
    assert printed == f"{module!r} True {module} is not installed: pip install 'aiozkqueue[{extra}]'\n"


def test_every_extra_that_a_message_names_exists(wheel: Path) -> None:
    files = members(wheel)
    (metadata,) = [data.decode() for name, data in files.items() if name.endswith("/METADATA")]
    provided = set(re.findall(r"^Provides-Extra: (\S+)$", metadata, re.MULTILINE))
    named = {
        extra
        for name, data in files.items()
        if name.endswith(".py")
        for extras in re.findall(rb"aiozkqueue\[([a-z,]+)\]|needs\(\"([a-z,]+)\"\)|missing\(.*?, \"([a-z,]+)\"\)", data)
        for extra in b"".join(extras).decode().split(",")
    }
    assert {"cli", "embedded", "http"} <= named
    assert named <= provided
