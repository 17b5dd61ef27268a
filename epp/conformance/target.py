"""The picker under test: where it listens, and how to reach it."""

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import grpc
import grpc.aio

from epp.conformance import address, tls
from epp.conformance.stream import Limits


class Security(StrEnum):
    """How to speak to the target."""

    AUTO = "auto"
    """TLS if the target does, else plain text."""
    TLS = "tls"
    PLAINTEXT = "plaintext"


class UnreachableError(Exception):
    """The target cannot be spoken to; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What the kit shows and demands in TLS."""

    security: Security = Security.AUTO
    ca: Path | None = None
    """Authorities to verify the target by; None: whatever it shows is taken, as gateways do."""
    certificate: Path | None = None
    key: Path | None = None
    server_name: str | None = None

    @property
    def client(self) -> tuple[str, str] | None:
        """Files of the client's certificate and key."""
        return (str(self.certificate), str(self.key)) if self.certificate and self.key else None


@dataclass(frozen=True, slots=True)
class Connection:
    """An open way to a target."""

    channel: grpc.aio.Channel
    tls: tls.Shown | None
    """What it showed in TLS; None: plain text."""


async def connect(host: str, port: int, credentials: Credentials, limits: Limits) -> Connection:
    """Reach the target. Raises UnreachableError."""
    where = address.join(host, port)
    try:
        shown = await _shown(host, port, credentials, limits)
        if shown is None:
            channel = grpc.aio.insecure_channel(where, options=_options(limits))
        else:
            channel = await _secure(shown, host, port, credentials, limits)
    except tls.NoTlsError as error:
        raise UnreachableError(str(error)) from None
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else str(error)
        raise UnreachableError(reason) from None
    return Connection(channel, shown)


async def _shown(host: str, port: int, credentials: Credentials, limits: Limits) -> tls.Shown | None:
    if credentials.security is Security.PLAINTEXT:
        return None
    try:
        return await tls.shown_by(host, port, seconds=limits.seconds, client=credentials.client)
    except tls.NoTlsError:
        if credentials.security is Security.TLS:
            raise
        return None


async def _secure(shown: tls.Shown, host: str, port: int, credentials: Credentials, limits: Limits) -> grpc.aio.Channel:
    name = credentials.server_name
    roots = credentials.ca.read_bytes() if credentials.ca else shown.certificate
    if name is None and credentials.ca is None:
        name = await tls.a_name_in(shown, host, port, seconds=limits.seconds, client=credentials.client)
        if name is None:
            raise tls.NoTlsError("the certificate names nobody, which gRPC for Python refuses")
    options = [*_options(limits), *([("grpc.ssl_target_name_override", name)] if name else [])]
    key = credentials.key.read_bytes() if credentials.key else None
    chain = credentials.certificate.read_bytes() if credentials.certificate else None
    secret = grpc.ssl_channel_credentials(root_certificates=roots, private_key=key, certificate_chain=chain)
    return grpc.aio.secure_channel(address.join(host, port), secret, options=options)


def _options(limits: Limits) -> list[tuple[str, str | int]]:
    return [
        ("grpc.max_receive_message_length", limits.message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.enable_retries", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.primary_user_agent", "epp-conformance"),
    ]
