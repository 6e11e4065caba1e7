"""A ZooKeeper container, for machines with a Docker engine."""

from __future__ import annotations

import importlib.util
import os
import socket
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from aiozkqueue.testing.node import four_letters
from aiozkqueue.testing.runtime import ServerUnavailableError

if TYPE_CHECKING:
    from collections.abc import Generator

IMAGE: Final = "zookeeper:3.9"
_PORT: Final = 2181


def engine_answers(timeout: float = 2.0) -> bool:
    """Return whether testcontainers is installed and a Docker engine answers; takes at most ``timeout`` seconds."""
    if importlib.util.find_spec("testcontainers") is None:
        return False
    answered = threading.Event()

    def ask() -> None:
        # Docker's client is slow, and leaves sockets open when there is no engine.
        with suppress(OSError, ValueError), _connected(timeout) as engine:
            engine.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            if b" 200 " in engine.recv(1024):
                answered.set()

    # A separate thread, because resolving the name of a remote engine may take longer than any socket timeout.
    asking = threading.Thread(target=ask, daemon=True, name="aiozkqueue-docker-ping")
    asking.start()
    asking.join(timeout)
    return answered.is_set()


def _connected(timeout: float) -> socket.socket:
    """Connect to the engine that Docker's client would use. Raises: OSError."""
    address = urlsplit(os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock")
    if address.scheme == "unix":
        engine = socket.socket(socket.AF_UNIX)
        try:
            engine.settimeout(timeout)
            engine.connect(address.path)
        except OSError:
            engine.close()
            raise
        return engine
    return socket.create_connection((address.hostname or "", address.port or 2375), timeout)


@contextmanager
def container(timeout: float = 60.0) -> Generator[str]:
    """Run a single ZooKeeper in a container; yields its connection string.

    Raises: ServerUnavailableError when it does not serve within ``timeout`` seconds.
    """
    from testcontainers.core.container import DockerContainer  # noqa: PLC0415 -- optional: the `dev` extra

    box = (
        DockerContainer(IMAGE)
        .with_exposed_ports(_PORT)
        .with_env("ZOO_TICK_TIME", "250")
        .with_env("ZOO_MAX_CLIENT_CNXNS", "0")
        .with_env("ZOO_4LW_COMMANDS_WHITELIST", "srvr,stat,conf,ruok,mntr,cons,wchs")
        .with_env("ZOO_CFG_EXTRA", "maxSessionTimeout=600000")
    )
    with box:
        host, port = box.get_container_host_ip(), int(box.get_exposed_port(_PORT))
        deadline = time.monotonic() + timeout
        while "Mode: " not in four_letters(port, "srvr", host=host):
            if time.monotonic() > deadline:
                text = f"the container of {IMAGE} did not serve within {timeout:g} s"
                raise ServerUnavailableError(text)
            time.sleep(0.1)
        yield f"{host}:{port}"
