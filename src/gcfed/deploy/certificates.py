"""Certificates and keys of a federation: TLS for its server, and a key for each of its nodes."""

import ipaddress
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from gcfed.errors import InputError
from gcfed.files import create_folder, refuse_existing

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

HERE = ("localhost", "127.0.0.1")
DAYS = 365  # that certificates are good for
SKEW = timedelta(minutes=10)  # by which clocks of machines may differ


@dataclass(frozen=True)
class Authority:
    """Who signs the certificates of a federation."""

    key: "EllipticCurvePrivateKey"
    certificate: "x509.Certificate"


def write_certificates(folder: Path, num_nodes: int, hosts: Sequence[str] = ()) -> list[Path]:
    """Make a new folder of all that a federation needs; its files are for their owner's eyes alone.

    ``ca.crt`` says whom to trust, ``server.crt`` is the server's, for this machine and ``hosts``,
    ``node-0.pub`` is what the server knows of the first node.  What ends in ``.key`` is secret.
    """
    refuse_existing(folder)
    if num_nodes < 1:
        raise InputError(f"a federation has at least one node; not {num_nodes}")
    files = _server_files([*HERE, *hosts])
    for node in range(num_nodes):
        files |= _node_files(f"node-{node}")
    create_folder(folder).chmod(0o700)
    for name, content in files.items():
        _write_secret(folder / name, content)
    return [folder / name for name in files]


def _server_files(hosts: Sequence[str]) -> dict[str, bytes]:
    """The files of the authority and of the server."""
    authority = _make_authority()
    key = _make_key()
    return {
        "ca.crt": _as_pem(authority.certificate),
        "ca.key": _as_secret_pem(authority.key),
        "server.crt": _as_pem(_sign_server(authority, key, hosts)),
        "server.key": _as_secret_pem(key),
    }


def _make_key() -> "EllipticCurvePrivateKey":
    try:
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise InputError("certificates need Flower: pip install 'gcfed[flower]'") from None
    return ec.generate_private_key(ec.SECP384R1())


def _make_authority() -> Authority:
    """A new authority, which vouches for itself."""
    key = _make_key()

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    name = _named("gcfed authority")
    signs_alone = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = _begin_certificate(name, key).issuer_name(name)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(signs_alone, critical=True)
    builder = builder.add_extension(identifier, critical=False)
    return Authority(key, builder.sign(key, hashes.SHA384()))


def _sign_server(
    authority: Authority, key: "EllipticCurvePrivateKey", hosts: Sequence[str]
) -> "x509.Certificate":
    """The certificate of a server that is reached under these names and addresses."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID

    names = x509.SubjectAlternativeName([_host_name(host) for host in dict.fromkeys(hosts)])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    serves = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    builder = _begin_certificate(_named("gcfed server"), key)
    builder = builder.issuer_name(authority.certificate.subject)
    builder = builder.add_extension(x509.BasicConstraints(False, None), critical=True)
    for extension in (names, issuer, serves):
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(authority.key, hashes.SHA384())


def _begin_certificate(
    name: "x509.Name", key: "EllipticCurvePrivateKey"
) -> "x509.CertificateBuilder":
    from cryptography import x509

    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - SKEW).not_valid_after(now + timedelta(days=DAYS))


def _named(name: str) -> "x509.Name":
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host_name(host: str) -> "x509.GeneralName":
    """A host as certificates name it: by its address, or else by its name."""
    from cryptography import x509

    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    try:
        return x509.DNSName(host)
    except ValueError:
        raise InputError(f"a host is a name such as fl.example.org; not {host!r}") from None


def _node_files(name: str) -> dict[str, bytes]:
    """The key with which a node proves who it is, and what the server checks it by."""
    key = _make_key()

    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    secret = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return {f"{name}.key": secret, f"{name}.pub": public + b"\n"}


def _as_pem(certificate: "x509.Certificate") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    pem: bytes = certificate.public_bytes(Encoding.PEM)
    return pem


def _as_secret_pem(key: "EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    pem: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem


def _write_secret(path: Path, content: bytes) -> None:
    """Write a new file that nobody else can read, at no time."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
