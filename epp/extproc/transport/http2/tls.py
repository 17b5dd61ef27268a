"""TLS by Python's ssl, with the certificates that every carrier shares."""

import os
import ssl

from epp.extproc.transport.tls import CertificateFiles, Certificates
from epp.settings import CarrierSettings


def server_context(settings: CarrierSettings) -> ssl.SSLContext | None:
    """The context that `settings` ask for, whose handshakes follow changed files; None: plain text.

    Raises SettingsError when the files are missing or do not fit together.
    """
    if not settings.secure_serving:
        return None
    files = CertificateFiles(settings)
    current = _context(files.read())

    def follow(handshake: ssl.SSLObject | ssl.SSLSocket, *_: object) -> None:
        nonlocal current
        found = files.changed()
        if found is not None:
            current = _context(found)
        handshake.context = current

    listening = _context(files.read())
    listening.sni_callback = follow  # called for every client, whether it names a server or not
    return listening


def _context(found: Certificates) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")  # none that RFC 9113 appendix A forbids
    context.set_alpn_protocols(["h2"])
    # A resumed session would keep the trust of a certificate that has been replaced.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    _load(context, found)
    if found.authorities is not None:
        context.load_verify_locations(cadata=found.authorities.decode())
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _load(context: ssl.SSLContext, found: Certificates) -> None:
    """Python loads certificates from files only; this one never touches a disk."""
    memory = os.memfd_create("epp-certificate")
    try:
        os.write(memory, found.certificate + b"\n" + found.key)
        context.load_cert_chain(f"/proc/self/fd/{memory}")
    finally:
        os.close(memory)
