"""TLS as the gateways do it to a picker: whatever certificate it shows is taken, without verifying it.

gRPC for Python cannot skip the verification, so the certificate is fetched first and then trusted.
"""

import asyncio
import ssl
from dataclasses import dataclass

_PARTIAL_CHAIN = 0x80000
"""OpenSSL's X509_V_FLAG_PARTIAL_CHAIN: trust a certificate that is no authority."""


class NoTlsError(Exception):
    """The target does not speak TLS on that port; the text says what happened."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What the target showed in the handshake."""

    certificate: bytes
    """PEM."""
    alpn: str
    """The protocol chosen by ALPN; empty: none."""


async def shown_by(host: str, port: int, *, seconds: float, client: tuple[str, str] | None = None) -> Shown:
    """Shake hands as a gateway does. Raises NoTlsError; OSError when nothing listens."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    session = await _handshake(context, host, port, seconds, client)
    der = session.getpeercert(binary_form=True)
    if der is None:
        raise NoTlsError("the target showed no certificate")
    return Shown(ssl.DER_cert_to_PEM_cert(der).encode(), session.selected_alpn_protocol() or "")


async def a_name_in(
    shown: Shown, host: str, port: int, *, seconds: float, client: tuple[str, str] | None = None
) -> str | None:
    """A name that the certificate holds, or None. Raises NoTlsError when it cannot be used at all, as when expired."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=shown.certificate.decode())
    context.verify_flags |= ssl.VerifyFlags(_PARTIAL_CHAIN)
    session = await _handshake(context, host, port, seconds, client)
    certificate = session.getpeercert() or {}
    names = [str(entry[1]) for entry in certificate.get("subjectAltName", ())]
    subject = [pair for part in certificate.get("subject", ()) for pair in part]
    names += [str(pair[1]) for pair in subject if pair[0] == "commonName"]
    return names[0] if names else None


async def _handshake(
    context: ssl.SSLContext, host: str, port: int, seconds: float, client: tuple[str, str] | None
) -> ssl.SSLObject:
    context.set_alpn_protocols(["h2"])
    if client is not None:
        context.load_cert_chain(*client)
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except ssl.SSLCertVerificationError as error:
        raise NoTlsError(f"the certificate cannot be used: {error.verify_message}") from None
    except (ssl.SSLError, ConnectionResetError) as error:
        raise NoTlsError(f"no TLS handshake: {error}") from None
    except TimeoutError:
        raise NoTlsError(f"no TLS handshake within {seconds:g} s") from None
    session: ssl.SSLObject = writer.get_extra_info("ssl_object")
    writer.transport.abort()
    return session
