"""Spark over mutual TLS, as a user with a private queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives import serialization
from pyspark.errors import PySparkException

import aiozkqueue as zq
from aiozkqueue.spark.connection import linked
from aiozkqueue.spark.options import parse_options
from aiozkqueue.testing import EmbeddedZooKeeper, ServerOptions
from tests.spark.test_batch import numbers, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from aiozkqueue.testing import Certificates

pytestmark = pytest.mark.timeout(300)


def test_an_encrypted_key_is_refused_without_a_question_on_the_terminal(
    tmp_path: Path, certificates: Certificates
) -> None:
    key = serialization.load_pem_private_key(certificates.client.read_bytes(), password=None)
    encryption = serialization.BestAvailableEncryption(b"secret")
    encrypted = tmp_path / "key.pem"
    encrypted.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
    files = {"tlsCert": str(certificates.client), "tlsKey": str(encrypted)}
    options = parse_options({"hosts": "localhost:1", "queue": "orders", "connectTimeout": "1", **files})
    with pytest.raises(zq.InvalidOptionError, match="encrypted key"), linked(options):
        pass


def test_credentials_are_read_from_the_file_that_the_environment_names(
    zookeeper: str, queue_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "credentials"
    secret.write_text("digest:owner:secret\n")
    options = parse_options({"hosts": zookeeper, "root": queue_root, "queue": "orders"})
    monkeypatch.setenv("AIOZKQUEUE_AUTH_FILE", str(secret))
    with linked(options) as link:
        assert link.zookeeper.authenticated
    secret.write_text("")
    with pytest.raises(zq.InvalidOptionError, match=r"AIOZKQUEUE_AUTH_FILE .* is empty"), linked(options):
        pass
    named = parse_options({"hosts": zookeeper, "root": queue_root, "queue": "orders", "authFile": str(secret)})
    with pytest.raises(zq.InvalidOptionError, match=r"authFile .* is empty.* on the driver and every"), linked(named):
        pass


def test_driver_and_tasks_present_their_certificate_and_their_credentials(
    spark: SparkSession,
    embedded_server: Callable[[ServerOptions], EmbeddedZooKeeper],
    queue_root: str,
    tmp_path: Path,
    certificates: Certificates,
) -> None:
    server = embedded_server(ServerOptions(tls=certificates.server_tls(client_certificate=True), fsync=False))
    (tmp_path / "credentials").write_text("digest:alice:al1ce")
    options = {
        "hosts": f"localhost:{server.node.ports.secure}",
        "root": queue_root,
        "queue": "orders",
        "connectTimeout": "60",
        "tlsCa": str(certificates.authority),
        "tlsCert": str(certificates.client),
        "authFile": str(tmp_path / "credentials"),
    }
    write(numbers(spark, 100), options)
    assert spark.read.format("aiozkqueue").options(**options).load().count() == 100
    untrusting = {name: value for name, value in options.items() if not name.startswith("tls")} | {
        "connectTimeout": "5"
    }
    with pytest.raises(PySparkException, match="ConnectionLostError"):
        spark.read.format("aiozkqueue").options(**untrusting).load().count()
    with pytest.raises(PySparkException, match="not a usable PEM file"):
        spark.read.format("aiozkqueue").options(**{**options, "tlsCa": str(tmp_path / "credentials")}).load().count()
