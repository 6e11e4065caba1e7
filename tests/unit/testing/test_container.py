"""The check for Docker is quick, and never hangs."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.testing.container import engine_answers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PONG = b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nOK"


@contextmanager
def engine(path: Path, answer: bytes | None) -> Iterator[str]:
    """A socket that listens instead of an engine, and sends this answer or nothing."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1024)
                if answer is None:
                    connection.recv(1)  # until the other side closes the connection
                else:
                    connection.sendall(answer)

        serving = threading.Thread(target=serve)
        serving.start()
        yield f"unix://{path}"
        serving.join()


@pytest.mark.parametrize(
    ("answer", "usable"), [(PONG, True), (b"HTTP/1.0 503 Service Unavailable\r\n\r\n", False), (b"", False)]
)
def test_only_a_container_engine_that_reports_health_is_used(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    answer: bytes,
    usable: bool,  # noqa: FBT001 -- a parameter
) -> None:
    with engine(tmp_path / "docker.sock", answer) as address:
        monkeypatch.setenv("DOCKER_HOST", address)
        assert engine_answers(30) is usable


def test_the_wait_for_a_hanging_container_engine_ends_at_its_timeout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with engine(tmp_path / "docker.sock", None) as address:
        monkeypatch.setenv("DOCKER_HOST", address)
        began = time.monotonic()
        assert not engine_answers(0.3)
        assert time.monotonic() - began < 10  # without a timeout, the check would wait forever


@pytest.mark.parametrize("address", ["unix:///nowhere/docker.sock", "tcp://127.0.0.1:1", "nonsense", "tcp://:x"])
def test_a_missing_container_engine_raises_no_error(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("DOCKER_HOST", address)
    assert not engine_answers()
