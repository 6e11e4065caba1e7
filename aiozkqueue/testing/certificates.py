"""Certificates for tests: a new authority, and a server and a client certificate that it signs."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiozkqueue.testing.configuration import ServerTls

if TYPE_CHECKING:
    from pathlib import Path

_LIFETIME = dt.timedelta(days=2)


@dataclass(frozen=True, slots=True)
class Certificates:
    """The paths of the PEM files. A server or client file holds a private key and its certificate."""

    authority: Path
    server: Path
    client: Path

    def server_tls(self, *, client_certificate: bool = False) -> ServerTls:
        """Return the TLS options of an embedded server. With ``client_certificate`` it refuses clients without one."""
        return ServerTls(self.server, self.authority, client_certificate=client_certificate)

    def client_context(self, *, client_certificate: bool = False) -> ssl.SSLContext:
        """Return a client's TLS context that trusts the authority and optionally has a client certificate. Blocks."""
        context = ssl.create_default_context(cafile=self.authority)
        if client_certificate:
            context.load_cert_chain(self.client)
        return context


def make_certificates(folder: Path) -> Certificates:
    """Create an authority and certificates for 127.0.0.1 and localhost in the folder, valid for two days. Blocks.

    Raises: ImportError when the `cryptography` package is not installed.
    """
    try:
        from cryptography import x509  # noqa: PLC0415 -- optional, and slow to import
        from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415 -- so too
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 -- so too
    except ImportError as error:
        raise ImportError("making certificates needs the cryptography package: pip install cryptography") from error

    now = dt.datetime.now(dt.UTC)
    places = x509.SubjectAlternativeName(
        [x509.DNSName("localhost"), *(x509.IPAddress(ipaddress.ip_address(ip)) for ip in ("127.0.0.1", "::1"))]
    )

    def certificate(name: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        """Build a certificate without its permitted uses."""
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
            .issuer_name(authority)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + _LIFETIME)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(root.public_key()), critical=False)
        )

    def signed_by_root(name: str) -> Path:
        key = ec.generate_private_key(ec.SECP256R1())
        leaf = (
            certificate(name, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(places, critical=False)
            .sign(root, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        file = folder / f"{name}.pem"
        file.touch(mode=0o600)
        file.write_bytes(private + leaf.public_bytes(serialization.Encoding.PEM))
        return file

    root = ec.generate_private_key(ec.SECP256R1())
    authority = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "aiozkqueue test authority")])
    self_signed = (
        certificate("aiozkqueue test authority", root)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(root.public_key()), critical=False)
        .add_extension(
            x509.KeyUsage(
                key_cert_sign=True,
                crl_sign=True,
                digital_signature=False,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .sign(root, hashes.SHA256())
    )
    trusted = folder / "authority.pem"
    trusted.write_bytes(self_signed.public_bytes(serialization.Encoding.PEM))
    return Certificates(trusted, signed_by_root("server"), signed_by_root("client"))
