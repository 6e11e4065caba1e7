"""Opens a connection from an address, with a session and its credentials.

Stock aiozk probes each server with the ``srvr`` command first, over a second connection; many servers do not answer it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from functools import partial
from typing import TYPE_CHECKING

import anyio

from aiozkqueue.zookeeper import records, wire
from aiozkqueue.zookeeper.connection import UNANSWERED
from aiozkqueue.zookeeper.errors import AuthFailedError, ServerError
from aiozkqueue.zookeeper.interface import Silence, TlsFailure
from aiozkqueue.zookeeper.sasl import DigestMd5
from aiozkqueue.zookeeper.threads import in_thread
from aiozkqueue.zookeeper.tls_errors import advice_on
from aiozkqueue.zookeeper.tls_files import RenewedContext

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiozkqueue.zookeeper.auth import Auth
    from aiozkqueue.zookeeper.connection import Connection
    from aiozkqueue.zookeeper.hosts import Server
    from aiozkqueue.zookeeper.interface import Answer

_ANY_PORT = 0
#: Seconds for a four-letter command.
COMMAND_TIMEOUT = 2.0
_LONGEST_ANSWER = 64 * 1024
# The server has accepted a connection, and closed it before the loop polls the socket.
_CLOSED = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError)


async def resolve(server: Server) -> list[str]:
    """Return the addresses behind a host name.

    Raises:
        OSError: there are no addresses.
    """
    with contextlib.suppress(ValueError):
        return [str(ipaddress.ip_address(server.host))]
    lookup = partial(socket.getaddrinfo, server.host, _ANY_PORT, type=socket.SOCK_STREAM)
    infos = await in_thread(lookup, f"lookup of {server.host}")
    return list(dict.fromkeys(str(info[4][0]) for info in infos))


async def dial(
    address: str, server: Server, connection: Callable[[], Connection], tls: ssl.SSLContext | None
) -> Connection:
    """Open a connection; with TLS, the certificate is checked against the name of the server, not its address.

    Raises:
        OSError: refused, server unreachable, or certificate not valid (`ssl.SSLError`).
    """
    if isinstance(tls, RenewedContext):
        remaining = anyio.current_effective_deadline() - anyio.current_time()
        await tls.renew(remaining / 2)  # the connection needs time, too
    try:
        _, opened = await asyncio.get_running_loop().create_connection(
            connection, address, server.port, ssl=tls, server_hostname=server.name_for(tls)
        )
    except _CLOSED as error:
        if tls is None:
            raise type(error)(UNANSWERED) from error
        raise type(error)(
            "closed during the TLS handshake: a port without TLS, or a server at its maxClientCnxns?"
        ) from error
    return opened


async def ask(server: Server, word: str, tls: ssl.SSLContext | None) -> Answer:
    """Return the answer to a four-letter command, cut at 64 KiB, or the reason for its absence."""
    answer = bytearray()
    silence: Silence | TlsFailure
    try:
        async with asyncio.timeout(COMMAND_TIMEOUT):
            reader, writer = await _open_any(await resolve(server), server, tls)
    except _CLOSED:
        return Silence.CLOSED
    except ssl.SSLError as error:
        return TlsFailure(str(error), advice_on(error))
    except OSError:  # TimeoutError is one
        return Silence.UNREACHABLE
    silence = Silence.CLOSED
    try:
        async with asyncio.timeout(COMMAND_TIMEOUT):
            writer.write(word.encode())
            while len(answer) < _LONGEST_ANSWER and (data := await reader.read(_LONGEST_ANSWER)):
                answer += data
    except TimeoutError:
        silence = Silence.FROZEN
    except ssl.SSLError as error:  # a server refuses a client's certificate after the handshake
        silence = TlsFailure(str(error), advice_on(error))
    except OSError:
        pass  # closed
    finally:
        writer.transport.abort()
    return answer[:_LONGEST_ANSWER].decode("utf-8", "replace") if answer else silence


async def _open_any(
    addresses: Sequence[str], server: Server, tls: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection to the first address that accepts one. Raises: OSError: that of the last address."""
    *earlier, last = addresses
    for address in earlier:
        with contextlib.suppress(OSError):
            return await open_streams(address, server, tls)
    return await open_streams(last, server, tls)


async def open_streams(
    address: str, server: Server, tls: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection that carries no session. Raises: OSError."""
    return await asyncio.open_connection(address, server.port, ssl=tls, server_hostname=server.name_for(tls))


async def authenticate(connection: Connection, credentials: Sequence[Auth]) -> None:
    """Send all credentials, and wait for the server's answer to each.

    Raises:
        AuthFailedError: the server refused one of them.
    """
    for auth in credentials:
        if auth.scheme == "sasl":
            await _sasl(connection, auth)
        else:
            await connection.authenticate(records.auth(auth.scheme, f"{auth.user}:{auth.password}".encode()))


async def _sasl(connection: Connection, auth: Auth) -> None:
    exchange = DigestMd5(auth)
    try:
        challenge = await connection.submit(records.sasl(b""))
        final = await connection.submit(records.sasl(exchange.respond(challenge)))
    except ServerError as error:
        msg = f"SASL: the server refused the exchange ({error}); is it set up for DIGEST-MD5?"
        raise AuthFailedError(msg) from error
    exchange.verify(final)


def connect_packet(session: wire.Connected | None, *, timeout: float, last_zxid: int) -> bytes:
    """Return the first packet: it asks to resume a session, or for a new one."""
    return records.connect(
        session_id=session.session_id if session else 0,
        password=session.password if session else bytes(16),
        timeout=timeout,
        last_zxid=last_zxid,
    )
