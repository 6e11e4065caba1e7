"""The connection string ``h1:2181,h2,[::1]:2182/chroot``. A string that cannot name a server is refused at once."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, NamedTuple

from aiozkqueue.errors import InvalidOptionError

if TYPE_CHECKING:
    import ssl

DEFAULT_PORT = 2181
_HIGHEST_PORT = 65535
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?(?<!-)", re.ASCII)


class Server(NamedTuple):
    """One server of an ensemble."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def name_for(self, tls: ssl.SSLContext | None) -> str | None:
        """Return the name that the certificate must have; None without TLS."""
        return self.host.rstrip(".") if tls else None


class Ensemble(NamedTuple):
    """The servers to connect to, and the path under which all data is stored (empty: ZooKeeper's own root)."""

    servers: tuple[Server, ...]
    chroot: str = ""

    def __str__(self) -> str:
        return ",".join(map(str, self.servers)) + self.chroot


def parse_hosts(hosts: object) -> Ensemble:
    """Read a connection string in ZooKeeper's own format; the default port is 2181.

    Raises:
        InvalidOptionError: names the invalid part, and the correct form.
    """
    if not isinstance(hosts, str):
        raise InvalidOptionError(f"hosts must be a string such as 'h1:2181,h2:2181/chroot', not {type(hosts).__name__}")
    scheme, address, remainder = hosts.partition("://")
    if address:
        raise _refused(hosts, "an address of ZooKeeper is no URL", f"leave out {scheme + address!r}")
    listed, slash, remainder = hosts.partition("/")
    servers = tuple(_server(part.strip(), hosts) for part in listed.split(","))
    return Ensemble(servers, _chroot(slash + remainder, hosts))


def _server(part: str, hosts: str) -> Server:
    if not part:
        raise _refused(hosts, "a server is empty", "write them as 'h1:2181,h2:2181'")
    if part.startswith("["):
        host, bracket, port = part[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise _refused(hosts, f"{part!r} is not an address in brackets", "write '[::1]:2181'")
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise _refused(hosts, f"{host!r} is not an IPv6 address", "write '[::1]:2181'") from None
        return Server(host, _port(port[1:], hosts) if port else DEFAULT_PORT)
    if part.count(":") > 1:
        raise _refused(hosts, f"{part!r} holds more than one colon", "put an IPv6 address in brackets: '[::1]:2181'")
    host, colon, port = part.partition(":")
    if not _HOST_NAME.fullmatch(host):
        raise _refused(hosts, f"{host!r} is not a host name", "write 'host:port', servers separated by commas")
    return Server(host, _port(port, hosts) if colon else DEFAULT_PORT)


def _port(text: str, hosts: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:6]) <= _HIGHEST_PORT):
        raise _refused(hosts, f"{text!r} is not a port", f"give a number from 1 to {_HIGHEST_PORT}")
    return int(text)


def _chroot(text: str, hosts: str) -> str:
    chroot = text.rstrip("/")
    if "," in chroot:
        raise _refused(hosts, f"a server follows the chroot {chroot!r}", "give the chroot once, after the last server")
    names = chroot.split("/")[1:]
    if any(name in {"", ".", ".."} or not name.isprintable() for name in names):
        raise _refused(hosts, f"{text!r} is not a path", "write a chroot as '/one/two'")
    return chroot


def _refused(hosts: str, wrong: str, remedy: str) -> InvalidOptionError:
    return InvalidOptionError(f"hosts {hosts!r}: {wrong}; {remedy}")
