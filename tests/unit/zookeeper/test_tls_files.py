"""The TLS files of commands: which changes of a file are noticed."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from aiozkqueue.testing.certificates import make_certificates
from aiozkqueue.zookeeper import RenewedContext, TlsFiles

if TYPE_CHECKING:
    from pathlib import Path


def authorities(context: RenewedContext) -> int:
    return context._context.cert_store_stats()["x509_ca"]


def made_authority(folder: Path) -> bytes:
    folder.mkdir()
    return make_certificates(folder).authority.read_bytes()


def test_authorities_that_were_read_half_written_are_read_again_within_one_step_of_the_clock(tmp_path: Path) -> None:
    first, second = (made_authority(tmp_path / name) for name in ("first", "second"))
    trusted = tmp_path / "authorities.pem"
    trusted.write_bytes(first)
    written = trusted.stat().st_mtime_ns
    context = RenewedContext(TlsFiles(trusted))
    asyncio.run(context.renew())
    assert authorities(context) == 1
    with trusted.open("ab") as file:
        file.write(second)
    os.utime(trusted, ns=(written, written))
    asyncio.run(context.renew())
    assert authorities(context) == 2
