"""The configuration of an embedded server: options, and the files made from them. Pure except for writing the files."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Final

from aiozkqueue.arguments import collection
from aiozkqueue.moments import milliseconds_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

#: The maximum session timeout, seconds, even with a short tick (the server's own limit is 20 ticks).
_LONGEST_SESSION: Final = 600
#: The setting that lists the four-letter commands that the server answers.
_ALLOWED: Final = "4lw.commands.whitelist"

_LOGGING: Final = """\
<Configuration status="error" shutdownHook="disable">
  <Appenders>
    <File name="file" fileName="{log}" append="true"><PatternLayout pattern="%d %-5p [%t] %c{{1}} %m%n"/></File>
  </Appenders>
  <Loggers>
    <Logger name="org.apache.zookeeper.server.NIOServerCnxn" level="warn"/>
    <Logger name="org.apache.zookeeper.server.NettyServerCnxn" level="warn"/>
    <Logger name="org.apache.zookeeper.server.command" level="warn"/>
    <Root level="info"><AppenderRef ref="file"/></Root>
  </Loggers>
</Configuration>
"""


@dataclass(frozen=True, slots=True)
class ServerTls:
    """TLS options of an embedded server: PEM files. The server opens a second port, ``secure_port``, for TLS."""

    key_and_certificate: Path  #: the private key, then its certificate chain
    authorities: Path  #: the authorities trusted to sign client certificates
    client_certificate: bool = False  #: refuse clients without a certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Options of an embedded server. The defaults suit tests: quick failure detection, durable writes."""

    tick_time: float = 0.25
    """ZooKeeper's basic time unit, seconds; a session timeout is at least two of them."""
    fsync: bool = True
    """Whether a write is on disk before it is acknowledged. False is faster, but loses data when the machine fails."""
    jute_maxbuffer: int | None = None
    """The maximum size of a request or znode, bytes; None for ZooKeeper's default, 1 MiB."""
    tls: ServerTls | None = None
    users: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """User names and passwords for SASL (DIGEST-MD5); SASL is off if there are none."""
    heap: int = 512
    """The JVM's heap, MiB."""
    settings: Mapping[str, str | int] = field(default_factory=dict[str, str | int])
    """Additional lines for the server's ``zoo.cfg``. The commands ``srvr`` and ``conf`` are allowed in any case."""
    jvm_options: Sequence[str] = ()
    """JVM options. The variable ``AIOZKQUEUE_JVM_OPTIONS`` applies to all servers, and its options come first."""

    def __post_init__(self) -> None:
        """Refuse a text in place of a collection. Raises: InvalidOptionError."""
        collection(self.jvm_options, "jvm_options", "JVM options")


@dataclass(frozen=True, slots=True)
class Ports:
    """A node's ports, all on 127.0.0.1. The nodes of an ensemble use ``quorum`` and ``election`` between them."""

    client: int
    secure: int
    quorum: int
    election: int


def write(folder: Path, options: ServerOptions, number: int, members: Mapping[int, Ports]) -> list[str]:
    """Write a node's files into its folder, and return the arguments for Java.

    Args:
        number: this node's number among the members.
        members: the ports of all nodes by their number; a single node runs standalone.
    """
    data = folder / "data"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # private to its user: it holds the contents of all queues
    data.mkdir(mode=0o700, exist_ok=True)
    (folder / "zoo.cfg").write_text(_settings(data, options, number, members))
    (folder / "log4j2.xml").write_text(_LOGGING.format(log=escape(str(folder / "zookeeper.log"))))
    (data / "myid").write_text(f"{number}\n")
    arguments = [
        f"-Xmx{options.heap}m",
        "-XX:+UseSerialGC",
        # Most servers run for seconds, so full compilation would not pay off. Later options, `jvm_options`, win.
        "-XX:TieredStopAtLevel=1",
        "-Xshare:auto",
        f"-Dlog4j2.configurationFile={folder / 'log4j2.xml'}",
        "-Dzookeeper.jmx.log4j.disable=true",
    ]
    if options.jute_maxbuffer is not None:
        arguments.append(f"-Djute.maxbuffer={options.jute_maxbuffer}")
    if options.users:
        jaas = folder / "jaas.conf"
        jaas.touch(mode=0o600)
        jaas.write_text(_jaas(options.users))
        arguments.append(f"-Djava.security.auth.login.config={jaas}")
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    return [*arguments, *options.jvm_options, main, str(folder / "zoo.cfg")]


def _settings(data: Path, options: ServerOptions, number: int, members: Mapping[int, Ports]) -> str:
    ports = members[number]
    settings: dict[str, str | int] = {
        "dataDir": str(data),
        "clientPort": ports.client,
        "clientPortAddress": "127.0.0.1",
        "tickTime": milliseconds_in(options.tick_time),
        "maxSessionTimeout": _LONGEST_SESSION * 1000,
        "initLimit": 40,
        "syncLimit": 20,
        "maxClientCnxns": 0,
        "admin.enableServer": "false",
        _ALLOWED: "srvr,stat,conf,ruok,mntr,cons,wchs",
        "extendedTypesEnabled": "true",
        "autopurge.snapRetainCount": 3,
        "autopurge.purgeInterval": 1,
        "forceSync": "yes" if options.fsync else "no",
    }
    if options.tls is not None:
        settings |= {
            "secureClientPort": ports.secure,
            "secureClientPortAddress": "127.0.0.1",
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": str(options.tls.key_and_certificate),
            "ssl.keyStore.type": "PEM",
            "ssl.trustStore.location": str(options.tls.authorities),
            "ssl.trustStore.type": "PEM",
            "ssl.clientAuth": "need" if options.tls.client_certificate else "none",
            # A test's clients come from 127.0.0.1, a name that client certificates are not issued for.
            "ssl.clientHostnameVerification": "false",
        }
    if options.users:
        settings["authProvider.1"] = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
    if len(members) > 1:
        settings |= {f"server.{n}": f"127.0.0.1:{m.quorum}:{m.election}" for n, m in members.items()}
    settings |= options.settings
    settings[_ALLOWED] = f"{settings[_ALLOWED]},srvr,conf"  # by which a start recognises that the server serves
    return "".join(f"{key}={_escaped(str(value))}\n" for key, value in settings.items())


def _jaas(users: Mapping[str, str]) -> str:
    quoted = "".join(f'\n  user_{name}="{_quoted(password)}"' for name, password in users.items())
    return f"Server {{\n  org.apache.zookeeper.server.auth.DigestLoginModule required{quoted};\n}};\n"


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\")
