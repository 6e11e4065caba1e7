"""Names in ZooKeeper, read with one short connection: the few requests that this takes, and no others."""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Self

#: Seconds for all requests of a completion.
PATIENCE: Final = 0.15
#: The data of a deleted queue's znode.
DELETED: Final = b'{"deleted": true}'
#: Below the root, by the kind of the names.
PLACES: Final = {"queue": "", "job": "/.schedule", "bus": "/.buses"}

#: The most znodes that are checked for deletion.
_MOST_CHECKED: Final = 200
_BETWEEN: Final = re.compile(r"\s+(?=(?:digest|sasl):)")
_MARGIN: Final = 0.05
_SESSION_MS: Final = 4000
_GET_DATA: Final = 4
_GET_CHILDREN: Final = 8
_CLOSE: Final = -11
_AUTH: Final = 100
_AUTH_XID: Final = -4


def names(kind: str, beginning: str, options: Mapping[str, str]) -> list[str]:
    """Return the names of queues, jobs or buses that begin with a text; none if no server answers in time.

    The options are those of a connection: ``--hosts``, ``--root``, ``--tls-ca`` and so on.
    """
    found: list[str] = []
    # In a thread, because the resolver of host names has no timeout.
    reading = threading.Thread(target=_read, args=(kind, beginning, options, found), daemon=True)
    reading.start()
    reading.join(PATIENCE + _MARGIN)
    return list(found)


def _read(kind: str, beginning: str, options: Mapping[str, str], found: list[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    listed, slash, chroot = options.get("--hosts", "127.0.0.1:2181").partition("/")
    base = f"{slash}{chroot}".rstrip("/") + options.get("--root", "/zms").rstrip("/") + PLACES[kind]
    for server in listed.split(","):
        try:
            with _Connection(_address(server.strip()), options, deadline) as connection:
                found.extend(_below(connection, kind, base, beginning))
        except (OSError, ValueError, struct.error):
            continue
        return


def _below(connection: _Connection, kind: str, base: str, beginning: str) -> list[str]:
    children = (name for name in connection.children(base) if name.startswith(beginning) and name[0] != ".")
    matching = sorted(children)
    if kind != "queue":
        return matching
    checked = matching[:_MOST_CHECKED]
    data = connection.data([f"{base}/{name}" for name in checked])
    deleted = {name for name, one in zip(checked, data, strict=True) if one == DELETED}
    return [name for name in matching if name not in deleted]


def _address(server: str) -> tuple[str, int]:
    host, colon, port = server.rpartition(":")
    if not colon or server.endswith("]"):
        host, port = server, "2181"
    return host.strip("[]"), int(port)


def _credentials(options: Mapping[str, str]) -> str:
    """Return the text of the credentials. Raises: OSError: their file cannot be read; UnicodeDecodeError."""
    if "--auth-file" in options:
        return Path(options["--auth-file"]).read_text(encoding="utf-8")
    return options.get("--auth", "")


class _Connection:
    """A session with a server, which ends with the block."""

    def __init__(self, address: tuple[str, int], options: Mapping[str, str], deadline: float) -> None:
        self._deadline = deadline
        self._socket = socket.create_connection(address, self._left())
        try:
            self._socket = _secured(self._socket, address[0], options)
            self._rest = b""
            self._send(struct.pack(">iqiqi16s?", 0, 0, _SESSION_MS, 0, 16, b"", True))  # noqa: FBT003 - a field
            self._receive()
            for one in _BETWEEN.split(_credentials(options).strip()):
                scheme, _, secret = one.partition(":")
                if scheme == "digest":
                    self._send(struct.pack(">iii", _AUTH_XID, _AUTH, 0) + _buffer(b"digest") + _buffer(secret.encode()))
                    self._receive()
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.settimeout(PATIENCE)
        self._send(struct.pack(">ii", 1, _CLOSE))
        self._socket.close()

    def children(self, path: str) -> list[str]:
        """Return the names below a znode; none if it does not exist or may not be listed."""
        answer = self._ask(_GET_CHILDREN, [path])[0]
        if answer is None:
            return []
        return [text.decode() for text in _buffers(answer)]

    def data(self, paths: list[str]) -> list[bytes | None]:
        """Return the data of znodes; None for one that cannot be read."""
        answers = self._ask(_GET_DATA, paths)
        return [None if one is None else one[4 : 4 + max(0, struct.unpack_from(">i", one)[0])] for one in answers]

    def _ask(self, kind: int, paths: list[str]) -> list[bytes | None]:
        """Send the requests together, and return their replies without the header; None for an error."""
        for path in paths:
            self._send(struct.pack(">ii", 1, kind) + _buffer(path.encode()) + b"\0")
        replies = [self._receive() for _ in paths]
        return [None if struct.unpack_from(">iqi", one)[2] else one[16:] for one in replies]

    def _send(self, frame: bytes) -> None:
        self._socket.sendall(_buffer(frame))

    def _receive(self) -> bytes:
        (length,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(length)

    def _exactly(self, size: int) -> bytes:
        while len(self._rest) < size:
            self._socket.settimeout(self._left())
            more = self._socket.recv(65536)
            if not more:
                raise ConnectionResetError
            self._rest += more
        found, self._rest = self._rest[:size], self._rest[size:]
        return found

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


def _secured(plain: socket.socket, host: str, options: Mapping[str, str]) -> socket.socket:
    """Return the socket with TLS if the options ask for it."""
    authorities, certificate = options.get("--tls-ca"), options.get("--tls-cert")
    if authorities is None and certificate is None and "--tls" not in options:
        return plain
    import ssl  # noqa: PLC0415 - most connections do without

    context = ssl.create_default_context(cafile=authorities)
    if certificate is not None:
        context.load_cert_chain(certificate, options.get("--tls-key"))
    return context.wrap_socket(plain, server_hostname=host)


def _buffer(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def _buffers(data: bytes) -> Iterator[bytes]:
    """Yield the members of a vector of buffers."""
    (count,), position = struct.unpack_from(">i", data), 4
    for _ in range(count):
        (length,) = struct.unpack_from(">i", data, position)
        yield data[position + 4 : position + 4 + length]
        position += 4 + length
