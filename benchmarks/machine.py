"""The machine of a measurement, since figures of different machines are not comparable."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from aiozkqueue.testing.node import four_letters
from aiozkqueue.testing.runtime import java

from .alike import loop_used

if TYPE_CHECKING:
    from .measure import Server

_PACKAGES = ("aiozkqueue", "aiozk", "kazoo", "pyspark", "redis", "saq")


def describe(server: Server) -> dict[str, str]:
    """Return the CPU, cores, memory, kernel, the disk's file system, and the versions of the software involved."""
    banner = four_letters(server.ports[0], "srvr").partition("\n")[0]
    runtime = subprocess.run([java(), "-version"], capture_output=True, text=True, check=True)  # noqa: S603 - our own command
    return {
        "cpu": _cpu(),
        "cores": str(os.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "load before": " ".join(f"{load:.1f}" for load in psutil.getloadavg()),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "event loop": loop_used(),
        "garbage": "all Python subjects: frozen before each measurement, searched after 10,000 new objects",
        "java": runtime.stderr.partition("\n")[0],
        "zookeeper": banner.removeprefix("Zookeeper version: ").partition("-")[0],
        "packages": ", ".join(f"{name} {version(name)}" for name in _PACKAGES),
    }


def _cpu() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
