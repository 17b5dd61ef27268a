"""Addresses: where a target listens, and `ip:port` as the protocol writes endpoints."""

import ipaddress


class AddressError(ValueError):
    """The text is no such address; it says what was expected."""


def endpoint(text: str) -> str:
    """`ip:port` in its one form, IPv6 in brackets. Raises AddressError (protocol rule P8)."""
    host, port = _split(text)
    bracketed = text.startswith("[")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise AddressError(f"{text!r}: expected ip:port, with an IP address") from None
    if bracketed != (address.version == 6):
        raise AddressError(f"{text!r}: expected ip:port, with brackets around IPv6 and only there")
    return f"[{address}]:{port}" if bracketed else f"{address}:{port}"


def target(text: str) -> tuple[str, int]:
    """Host and port of `host:port`. Raises AddressError."""
    return _split(text)


def join(host: str, port: int) -> str:
    """`host:port`, with brackets around IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _split(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise AddressError(f"{text!r}: expected host:port, with brackets around IPv6")
    if not (colon and host and port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise AddressError(f"{text!r}: expected host:port, with a port of 1 to 65535")
    return host, int(port)
