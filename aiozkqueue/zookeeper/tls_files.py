"""TLS contexts of commands and jobs, which name their certificates by files."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.zookeeper.threads import in_thread

if TYPE_CHECKING:
    from pathlib import Path

log: Final = logging.getLogger(__name__)

_READ_TIMEOUT: Final = 5.0  # for a file system, seconds


class TlsFiles(NamedTuple):
    """The PEM files of a client; None: not given."""

    authorities: Path | str | None = None
    """The authorities to trust, instead of those of the system."""
    certificate: Path | str | None = None
    key: Path | str | None = None
    """The private key; None: it is in the file of the certificate."""

    def context(self) -> ssl.SSLContext:
        """Load the files.

        Raises:
            OSError: a file cannot be read, or is not a usable PEM file.
            InvalidOptionError: the key is encrypted.
        """
        context = ssl.create_default_context(cafile=self.authorities)
        if self.certificate is not None:
            context.load_cert_chain(self.certificate, self.key, _passphrase)
        return context

    def stamps(self) -> list[tuple[int, int, int]]:
        """Return a value that changes when a file is replaced or completed. Raises: OSError."""
        stats = [os.stat(file) for file in self if file is not None]  # noqa: PTH116 - a str or a Path
        # Many kernels count the time of a change in steps of milliseconds, in which a file may be read and completed.
        return [(stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats]


class RenewedContext(ssl.SSLContext):
    """A context for clients that reads its files again before a connection if they have changed.

    A service runs for longer than its certificate is valid. Files that cannot be used, such as a half-written one, are
    logged once, and the last usable ones stay in use. The same applies while a file system does not answer. At most
    one thread waits for it.

    Raises: as `TlsFiles.context`.
    """

    _files: TlsFiles
    _stamps: list[tuple[int, int, int]]
    _context: ssl.SSLContext
    _trouble: str
    _reading: Lock

    def __new__(cls, files: TlsFiles) -> Self:
        """Load the files."""
        self = super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)
        self._files, self._stamps, self._context, self._trouble = files, [], files.context(), ""
        self._reading = Lock()  # its files, from the start of a thread to the thread's end
        return self

    async def renew(self, within: float = _READ_TIMEOUT) -> None:
        """Read the files in a thread if they have changed, and wait up to ``within`` seconds, at most 5, for that.

        If an earlier reading has not ended yet, none is begun.

        Raises: OSError: no thread can be started.
        """
        if not self._reading.acquire(blocking=False):
            return
        try:
            async with asyncio.timeout(min(within, _READ_TIMEOUT)):
                await in_thread(self._renew, "TLS files")
        except TimeoutError:
            self._report("the TLS files cannot be read in time, so the earlier ones stay in use")
        except OSError:  # no thread
            self._reading.release()
            raise

    def _report(self, trouble: str) -> None:
        if self._trouble != trouble:  # an outage may last for thousands of connections
            self._trouble = trouble
            log.warning("%s", trouble)

    def _renew(self) -> None:
        try:
            stamps = self._files.stamps()
            if stamps != self._stamps:
                self._context, self._stamps = self._files.context(), stamps
            self._trouble = ""
        except (OSError, InvalidOptionError) as error:
            self._report(f"the changed TLS files cannot be used, so the earlier ones stay in use: {error}")
        finally:
            self._reading.release()

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:  # noqa: ANN401 - those of the base class
        """Begin the handshake of a connection, with the files that were read last."""
        return self._context.wrap_bio(*arguments, **options)


def _passphrase() -> str:
    """Refuse an encrypted key. Without this, OpenSSL asks for its passphrase on a terminal, and waits."""
    msg = "the TLS key is an encrypted key, whose passphrase cannot be entered here: use an unencrypted key"
    raise InvalidOptionError(msg)
