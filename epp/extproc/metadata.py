"""What gateways say beside the HTTP messages: headers, the subset hint, the endpoint that answered."""

from ipaddress import ip_address

from google.protobuf.struct_pb2 import Value

from epp._pb.base_pb2 import HeaderMap, Metadata


def headers_of(headers: HeaderMap) -> dict[str, str]:
    """Values by name in lower case; of repeated headers the last, which a gateway adds behind the client's.

    Gateways use `raw_value` or `value`, some both in one message. Bytes that are not UTF-8 become replacements.
    """
    return {
        header.key.lower(): header.raw_value.decode("utf-8", "replace") if header.raw_value else header.value
        for header in headers.headers
    }


def listed(metadata: Metadata, namespace: str, key: str) -> tuple[str, ...] | None:
    """The entries of a list or comma-separated string; None when the key is not set."""
    if namespace not in metadata.filter_metadata:
        return None
    fields = metadata.filter_metadata[namespace].fields
    return _entries(fields[key]) if key in fields else None


def _entries(value: Value) -> tuple[str, ...]:
    texts = [item.string_value for item in value.list_value.values] or [value.string_value]
    return tuple(entry.strip() for text in texts for entry in text.split(",") if entry.strip())


def plain_host(entry: str) -> str:
    """`ip:port` or `ip` as endpoints spell it: IPv6 shortened, in brackets only before a port."""
    host, colon, port = entry.rpartition(":")
    if host.startswith("[") and host.endswith("]") and port.isdigit():
        return f"[{_shortest(host[1:-1])}]:{port}"
    if colon and ":" not in host:
        return entry
    return _shortest(entry.removeprefix("[").removesuffix("]"))


def _shortest(address: str) -> str:
    try:
        return str(ip_address(address))
    except ValueError:
        return address
