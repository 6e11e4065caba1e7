"""Build the wheel with the jars of a ZooKeeper server from those of the installed PySpark.

``python -m zookeeper_wheel.build DIST`` writes the wheel into the folder DIST and prints its path.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import Final

from aiozkqueue.testing.runtime import jars_in

_SOURCE: Final = Path(__file__).parent
_BUILD: Final = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"


def build(dist: Path, pyspark: Path) -> Path:
    """Build the wheel from a PySpark package, and return its path. Raises: SystemExit: it has another ZooKeeper."""
    jars = jars_in(pyspark)
    version = tomllib.loads((_SOURCE / "pyproject.toml").read_text())["project"]["version"]
    if f"zookeeper-{version}.jar" not in [jar.name for jar in jars]:
        raise SystemExit(f"{pyspark} has no ZooKeeper {version}; change the version in {_SOURCE / 'pyproject.toml'}")
    dist.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name) / "tree"
        shutil.copytree(_SOURCE, tree, ignore=shutil.ignore_patterns("__pycache__", "build.py"))
        (tree / "__init__.py").unlink()
        shutil.copy(_SOURCE.parent / "LICENSE", tree)
        folder = tree / "aiozkqueue_zookeeper" / "jars"
        folder.mkdir()
        for jar in jars:
            shutil.copy(jar, folder)
            if jar.name.startswith("slf4j-api-"):
                with zipfile.ZipFile(jar) as archive:
                    (tree / "LICENSE.slf4j").write_bytes(archive.read("META-INF/LICENSE.txt"))
        built = subprocess.run(  # noqa: S603 - our own interpreter and text
            [sys.executable, "-c", _BUILD, os.fspath(dist.resolve())],
            cwd=tree,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return dist / built.stdout.split()[-1]


def main() -> None:
    """Build the wheel from the installed PySpark."""
    import pyspark  # noqa: PLC0415 - an extra

    sys.stdout.write(f"{build(Path(sys.argv[1]), Path(pyspark.__file__).parent)}\n")


if __name__ == "__main__":
    main()
