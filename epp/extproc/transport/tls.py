"""Certificates of the ext_proc port: self-signed, or from files that are read again when they change."""

import datetime
import ipaddress
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import grpc
import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from epp.settings import CarrierSettings, SettingsError

_log = structlog.get_logger(__name__)

_YEARS = 10


def server_credentials(settings: CarrierSettings) -> grpc.ServerCredentials | None:
    """The credentials that `settings` ask for; None: plain text.

    Raises SettingsError when the files are missing or do not fit together.
    """
    if not settings.secure_serving:
        return None
    files = CertificateFiles(settings)

    def changed() -> grpc.ServerCertificateConfiguration | None:
        found = files.changed()
        return None if found is None else _for_grpc(found)

    return grpc.dynamic_ssl_server_credentials(
        _for_grpc(files.read()),
        # The stubs do not know that None means "no change".
        cast(Callable[[], grpc.ServerCertificateConfiguration], changed),
        require_client_authentication=settings.tls_client_ca_file is not None,
    )


def _for_grpc(found: "Certificates") -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(found.key, found.certificate)], found.authorities)


@dataclass(frozen=True, slots=True)
class Certificates:
    """What one handshake uses, in PEM."""

    certificate: bytes
    key: bytes
    authorities: bytes | None
    """Whose client certificates are demanded; None: none are."""


class CertificateFiles:
    """Reads the certificate, key and client authorities; a carrier asks `changed` before each handshake."""

    def __init__(self, settings: CarrierSettings) -> None:
        if (settings.tls_cert_file is None) != (settings.tls_key_file is None):
            missing = "EPP_TLS_CERT_FILE" if settings.tls_cert_file is None else "EPP_TLS_KEY_FILE"
            raise SettingsError(f"{missing}: expected a file, as certificate and key come together")
        self._own = (settings.tls_cert_file, settings.tls_key_file)
        self._authorities = settings.tls_client_ca_file
        self._self_signed = self_signed() if settings.tls_cert_file is None else None
        self._seen = self._stamps()

    def read(self) -> Certificates:
        """What the files hold now. Raises SettingsError when one cannot be read or certificate and key do not fit."""
        certificate, key = self._self_signed or (
            _contents("EPP_TLS_CERT_FILE", self._own[0]),
            _contents("EPP_TLS_KEY_FILE", self._own[1]),
        )
        _check_pair(certificate, key)
        authorities = None
        if self._authorities is not None:
            authorities = _contents("EPP_TLS_CLIENT_CA_FILE", self._authorities)
            _check_authorities(authorities)
        return Certificates(certificate, key, authorities)

    def changed(self) -> Certificates | None:
        """The new certificates when a file was replaced, as Kubernetes does with a renewed secret; else None."""
        stamps = self._stamps()
        if stamps == self._seen:
            return None
        self._seen = stamps
        try:
            found = self.read()
        except SettingsError as error:
            _log.warning("the changed certificate is of no use, the old one stays", reason=str(error))
            return None
        _log.info("certificate read again")
        return found

    def _stamps(self) -> list[tuple[int, int] | None]:
        return [_stamp(path) for path in (*self._own, self._authorities)]


def self_signed() -> tuple[bytes, bytes]:
    """A new certificate and key in PEM. Gateways do not verify it; an EC key keeps NGINX's handshakes cheap."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "epp")])
    now = datetime.datetime.now(datetime.UTC)
    names: list[x509.GeneralName] = [x509.DNSName(known) for known in {"localhost", "epp", socket.gethostname()}]
    names += [x509.IPAddress(ipaddress.ip_address(address)) for address in ("127.0.0.1", "::1")]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365 * _YEARS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    return (
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def _check_pair(certificate: bytes, key: bytes) -> None:
    """gRPC drops connections in silence when the two do not fit."""
    try:
        public = x509.load_pem_x509_certificates(certificate)[0].public_key()
    except ValueError as error:
        raise SettingsError(f"EPP_TLS_CERT_FILE: expected PEM certificates: {error}") from None
    try:
        private = serialization.load_pem_private_key(key, password=None)
    except (ValueError, TypeError) as error:
        raise SettingsError(f"EPP_TLS_KEY_FILE: expected a PEM private key without a password: {error}") from None
    if private.public_key() != public:
        raise SettingsError("EPP_TLS_KEY_FILE: expected the key of EPP_TLS_CERT_FILE")


def _check_authorities(authorities: bytes) -> None:
    try:
        x509.load_pem_x509_certificates(authorities)
    except ValueError as error:
        raise SettingsError(f"EPP_TLS_CLIENT_CA_FILE: expected PEM certificates: {error}") from None


def _contents(setting: str, path: Path | None) -> bytes:
    assert path is not None
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{setting}: {path}: {error.strerror}") from None


def _stamp(path: Path | None) -> tuple[int, int] | None:
    if path is None:
        return None
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns
