"""The TLS files of commands, and the changes of files that are noticed."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from aiozkqueue.testing.certificates import make_certificates
from aiozkqueue.zookeeper import RenewedContext, TlsFiles

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


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


def test_files_that_cannot_be_used_are_logged_once_however_many_connections_are_tried(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trusted = tmp_path / "authorities.pem"
    usable = made_authority(tmp_path / "made")
    trusted.write_bytes(usable)
    context = RenewedContext(TlsFiles(trusted))
    for warnings in (1, 2):
        trusted.write_bytes(b"half of a certificate")
        for _ in range(3):
            asyncio.run(context.renew())
        assert len(caplog.records) == warnings
        trusted.write_bytes(usable)
        asyncio.run(context.renew())
    assert authorities(context) == 1
