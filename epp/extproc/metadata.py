"""What gateways say beside the HTTP messages: headers, the subset hint, the endpoint that answered."""

from ipaddress import ip_address

from google.protobuf.struct_pb2 import Value

from epp._pb.base_pb2 import HeaderMap, HeaderValue
from epp._pb.external_processor_pb2 import ProcessingRequest


class Headers:
    """The headers of one message by name in lower case; values are decoded when asked for, since few are.

    Of repeated headers the last counts, which a gateway adds behind the client's.
    """

    __slots__ = ("_by_name",)

    def __init__(self, headers: HeaderMap | None = None) -> None:
        self._by_name: dict[str, HeaderValue] = {}
        if headers is not None:
            self._by_name = {header.key.lower(): header for header in headers.headers}

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def get(self, name: str) -> str:
        """The header's value, empty when absent.

        Gateways use `raw_value` or `value`, some both in one message. Bytes that are not UTF-8 become replacements.
        """
        header = self._by_name.get(name)
        if header is None:
            return ""
        raw = header.raw_value
        return raw.decode("utf-8", "replace") if raw else header.value

    def drop(self, names: frozenset[str]) -> None:
        """Forget these."""
        for name in names.intersection(self._by_name):
            del self._by_name[name]


def listed(request: ProcessingRequest, namespace: str, key: str) -> tuple[str, ...] | None:
    """The entries of a list or comma-separated string in the message's metadata; None when the key is not set."""
    if not request.HasField("metadata_context"):
        return None
    metadata = request.metadata_context.filter_metadata
    if namespace not in metadata:
        return None
    fields = metadata[namespace].fields
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
