"""The connection options of every command; each is also an environment variable."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Concatenate, Final, ParamSpec, cast

import typer

import aiozkqueue as zq
from aiozkqueue.cli import bars, output
from aiozkqueue.cli.asked import AskedQueue
from aiozkqueue.cli.exits import CommandFailedError, Exit
from aiozkqueue.cli.times import TIME, duration_from
from aiozkqueue.operations.similar import ALIKE, absence, similar_queue
from aiozkqueue.session.credentials import AUTH, AUTH_FILE, credentials_of_environment, credentials_of_file
from aiozkqueue.session.internals import core_of
from aiozkqueue.zookeeper import RenewedContext, TlsFiles, parse_hosts

if TYPE_CHECKING:
    import ssl

    from aiozkqueue.session.connect import ConnectOptions
    from aiozkqueue.zookeeper.hosts import Server

P = ParamSpec("P")

DEFAULT_HOSTS: Final = "127.0.0.1:2181"
DEFAULT_ROOT: Final = "/zms"
DEFAULT_SESSION_TIMEOUT: Final = 10.0
DEFAULT_CONNECT_TIMEOUT: Final = 15

HOSTS: Final = "AIOZKQUEUE_HOSTS"
ROOT: Final = "AIOZKQUEUE_ROOT"
SESSION_TIMEOUT: Final = "AIOZKQUEUE_SESSION_TIMEOUT"
CONNECT_TIMEOUT: Final = "AIOZKQUEUE_CONNECT_TIMEOUT"
TLS_CA: Final = "AIOZKQUEUE_TLS_CA"
TLS_CERT: Final = "AIOZKQUEUE_TLS_CERT"
TLS_KEY: Final = "AIOZKQUEUE_TLS_KEY"
TLS: Final = "AIOZKQUEUE_TLS"
VARIABLES: Final = (HOSTS, ROOT, SESSION_TIMEOUT, CONNECT_TIMEOUT, TLS_CA, TLS_CERT, TLS_KEY, TLS, AUTH, AUTH_FILE)

_PANEL: Final = "Connection"
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclass(frozen=True, slots=True)
class Connection:
    """The user's connection options; None: the command may choose."""

    hosts: str | None
    root: str
    session_timeout: float | None
    connect_timeout: float
    tls_ca: Path | None
    tls_cert: Path | None
    tls_key: Path | None
    tls: bool
    auth: tuple[zq.Auth, ...]

    @asynccontextmanager
    async def open(self, *, node: str | None = None) -> AsyncIterator[zq.QueueSession]:
        """Open a session with these servers, for this node (None: this host). Raises: typer.BadParameter."""
        hosts = DEFAULT_HOSTS if self.hosts is None else self.hosts
        connecting = zq.connect(
            hosts,
            root=self.root,
            session_timeout=self.session_timeout or DEFAULT_SESSION_TIMEOUT,
            connect_timeout=self.connect_timeout,
            tls=self._checked_tls(),
            auth=self.auth,
            node=node,
        )
        async with AsyncExitStack() as stack:
            with bars.waiting(f"connecting to {hosts}"):
                session = await stack.enter_async_context(connecting)
            yield session

    def open_app(self, app: zq.App) -> AbstractAsyncContextManager[zq.QueueSession]:
        """Open the session of an application; options that were given replace the application's.

        Raises: typer.BadParameter.
        """
        options: ConnectOptions = {}
        if self.root != DEFAULT_ROOT:
            options["root"] = self.root
        if self.session_timeout is not None:
            options["session_timeout"] = self.session_timeout
        if self.connect_timeout != DEFAULT_CONNECT_TIMEOUT:
            options["connect_timeout"] = self.connect_timeout
        if (tls := self._checked_tls()) is not None:
            options["tls"] = tls
        if self.auth:
            options["auth"] = self.auth
        return app.connect(self.hosts, **options)

    def _checked_tls(self) -> ssl.SSLContext | None:
        """Return the TLS context, with a warning about a password that is sent without. Raises: typer.BadParameter."""
        tls = self.tls_context()
        if tls is None and any(auth.scheme == "digest" for auth in self.auth) and not self._is_local():
            output.note("the password goes over the network unencrypted: use --tls or --tls-ca, or sasl: credentials")
        return tls

    @asynccontextmanager
    async def open_queue(self, queue: AskedQueue | str, *, node: str | None = None) -> AsyncIterator[zq.Queue[bytes]]:
        """Open a session for a request about one queue. Raises: CommandFailedError: it does not exist."""
        async with self.open(node=node) as session:
            yield await self.existing(session, queue)

    async def existing(self, session: zq.QueueSession, queue: AskedQueue | str) -> zq.Queue[bytes]:
        """Return a queue that must exist. Raises: CommandFailedError."""
        asked = AskedQueue(queue) if isinstance(queue, str) else queue
        target = asked.of(session)
        if not await target.exists():
            raise CommandFailedError(await _absence(session, asked))
        return target

    async def note_absent(self, session: zq.QueueSession, queue: AskedQueue | str) -> None:
        """Print that the queue does not exist, with the path that was searched and the most similar name."""
        output.note(await _absence(session, AskedQueue(queue) if isinstance(queue, str) else queue))

    async def note_new(self, session: zq.QueueSession, queue: AskedQueue | str) -> None:
        """Print a note if the queue does not exist, and need not exist, but another has a similar name."""
        asked = AskedQueue(queue) if isinstance(queue, str) else queue
        if asked.program is not None or await asked.of(session).exists():
            return
        similar = await similar_queue(core_of(session), asked.name, similarity=ALIKE)
        if similar is not None:
            output.note(f"queue {asked.name!r} is new; did you mean {similar!r}?")

    def at(self, hosts: str) -> Connection:
        """Return these options for servers of our own, which have neither TLS nor users."""
        return replace(self, hosts=hosts, tls_ca=None, tls_cert=None, tls_key=None, tls=False, auth=())

    def environment(self) -> dict[str, str]:
        """Return the environment of a child process with this connection; other users could read its arguments."""
        variables = {
            HOSTS: self.hosts,
            ROOT: self.root,
            SESSION_TIMEOUT: self.session_timeout,
            CONNECT_TIMEOUT: self.connect_timeout,
            TLS_CA: self.tls_ca,
            TLS_CERT: self.tls_cert,
            TLS_KEY: self.tls_key,
            TLS: "1" if self.tls else None,
            AUTH: self.credentials() or None,
        }
        inherited = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        return inherited | {name: str(value) for name, value in variables.items() if value is not None}

    def credentials(self) -> str:
        """Return the credentials as one text, which `Auth.parse_all` reads."""
        return "\n".join(f"{auth.scheme}:{auth.user}:{auth.password}" for auth in self.auth)

    @property
    def servers(self) -> tuple[Server, ...]:
        """The servers of the hosts. Raises: InvalidOptionError."""
        return parse_hosts(DEFAULT_HOSTS if self.hosts is None else self.hosts).servers

    def _is_local(self) -> bool:
        """Whether all servers are on this machine."""
        return all(server.host in _LOOPBACK for server in self.servers)

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the context of encrypted connections. Raises: typer.BadParameter."""
        if self.tls_key is not None and self.tls_cert is None:
            message = "--tls-key needs --tls-cert"
            raise typer.BadParameter(message)
        if self.tls_ca is None and self.tls_cert is None and not self.tls:
            return None
        try:
            return RenewedContext(TlsFiles(self.tls_ca, self.tls_cert, self.tls_key))
        except OSError as error:  # includes ssl.SSLError
            message = f"--tls-ca, --tls-cert or --tls-key is not a usable PEM file: {error}"
            raise typer.BadParameter(message) from error


async def _absence(session: zq.QueueSession, queue: AskedQueue) -> str:
    if queue.program is None:
        return await absence(core_of(session), queue.name)
    return f"there is no {queue.program.capitalize()} queue at {queue.name!r}"


def _file(variable: str, text: str) -> object:
    return typer.Option(envvar=variable, metavar="FILE", exists=True, dir_okay=False, help=text, rich_help_panel=_PANEL)


def connection(
    hosts: Annotated[
        str | None,
        typer.Option(
            envvar=HOSTS,
            metavar="HOST:PORT,…",
            help=f"The servers, with an optional chroot after the last. [dim]\\[default: {DEFAULT_HOSTS}][/dim]",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    root: Annotated[
        str,
        typer.Option(envvar=ROOT, metavar="PATH", help="The path of the queues in ZooKeeper.", rich_help_panel=_PANEL),
    ] = DEFAULT_ROOT,
    session_timeout: Annotated[
        float | None,
        typer.Option(
            envvar=SESSION_TIMEOUT,
            metavar=TIME,
            parser=duration_from(0.001),
            help="The session timeout. If this process is unreachable for longer, its messages are redelivered. "
            f"[dim]\\[default: {DEFAULT_SESSION_TIMEOUT:g}][/dim]",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    connect_timeout: Annotated[
        float,
        typer.Option(
            envvar=CONNECT_TIMEOUT,
            metavar=TIME,
            parser=duration_from(0.001),
            help="How long to wait for the first connection.",
            rich_help_panel=_PANEL,
        ),
    ] = DEFAULT_CONNECT_TIMEOUT,
    tls_ca: Annotated[
        Path | None, _file(TLS_CA, "PEM file with the authorities that signed the servers' certificates.")
    ] = None,
    tls_cert: Annotated[
        Path | None, _file(TLS_CERT, "PEM file with the client certificate, and its key unless --tls-key has it.")
    ] = None,
    tls_key: Annotated[Path | None, _file(TLS_KEY, "PEM file with the client's private key.")] = None,
    tls: Annotated[
        bool,
        typer.Option(
            "--tls",
            envvar=TLS,
            help="Use TLS and trust the system's authorities; implied by the files above.",
            rich_help_panel=_PANEL,
        ),
    ] = False,
    auth: Annotated[
        list[str] | None,
        typer.Option(
            metavar="digest:USER:PASSWORD",
            help="Credentials, or sasl:USER:PASSWORD; may be repeated. Other users of the machine see arguments: set "
            f"the variable instead. [dim]\\[env var: {AUTH}][/dim]",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None,
    auth_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help=f"A file with such credentials, such as a secret of Docker. [dim]\\[env var: {AUTH_FILE}][/dim]",
            rich_help_panel=_PANEL,
        ),
    ] = None,
) -> Connection:
    """Return the connection of these options. Raises: typer.BadParameter, which never shows a password."""
    credentials = _credentials(auth, auth_file)
    return Connection(hosts, root, session_timeout, connect_timeout, tls_ca, tls_cert, tls_key, tls, credentials)


def _credentials(given: list[str] | None, file: Path | None) -> tuple[zq.Auth, ...]:
    """Return the credentials of the options, or else of the variables.

    Typer would split a variable at the spaces in a password.
    """
    if given and file is not None:
        message = "give --auth or --auth-file, not both"
        raise typer.BadParameter(message)
    try:
        if file is not None:
            return tuple(credentials_of_file(file, "--auth-file"))
        return tuple(map(zq.Auth.parse, given) if given else credentials_of_environment())
    except zq.InvalidOptionError as error:
        message = f"--auth: {error}" if given else str(error)
        raise typer.BadParameter(message) from None


def with_connection(command: Callable[Concatenate[Connection, P], Exit]) -> Callable[P, Exit]:
    """Turn ``def command(connection, …)`` into a command with the connection's options in addition to its own."""
    shared = inspect.signature(connection, eval_str=True).parameters
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

    @functools.wraps(command)
    def run(**given: object) -> Exit:
        options = {name: given.pop(name) for name in shared}
        settings = cast("Callable[..., Connection]", connection)(**options)
        return cast("Callable[..., Exit]", command)(settings, **given)

    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (*own, *shared.values())]
    # The signature that typer reads.
    vars(run)["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return cast("Callable[P, Exit]", run)


def connected(
    command: Callable[Concatenate[Connection, P], Coroutine[None, None, Exit]],
) -> Callable[P, Exit]:
    """Turn ``async def command(connection, …)`` into such a command, run on its own event loop."""

    @functools.wraps(command)
    def run(settings: Connection, /, *arguments: P.args, **options: P.kwargs) -> Exit:
        return asyncio.run(command(settings, *arguments, **options))

    return with_connection(cast("Callable[Concatenate[Connection, P], Exit]", run))
