"""Endpoints from the one setting `EPP_ENDPOINTS`."""

import asyncio
from ipaddress import ip_address

from epp.endpoints.endpoint import Endpoint, Place
from epp.endpoints.source import Source
from epp.settings import SettingsError

_MAX_PORT = 65535


class StaticFeed:
    """A fixed list."""

    sources: tuple[Source, ...] = ()

    def __init__(self, endpoints: tuple[Endpoint, ...]) -> None:
        self._endpoints = endpoints

    def endpoints(self) -> tuple[Endpoint, ...]:
        """The list."""
        return self._endpoints

    def at(self, place: Place) -> Endpoint | None:
        """The one of the list at `place`."""
        return next((endpoint for endpoint in self._endpoints if endpoint.place == place), None)

    def problem(self) -> str:
        """Nothing that a person must mend."""
        return ""

    async def run(self) -> None:
        """Wait until cancelled."""
        await asyncio.Event().wait()


def static_endpoints(text: str) -> tuple[Endpoint, ...]:
    """The endpoints in a comma list of `ip:port`, IPv6 in brackets. Raises SettingsError."""
    endpoints = [_endpoint(part.strip()) for part in text.split(",") if part.strip()]
    places = [endpoint.host_port for endpoint in endpoints]
    for place in places:
        if places.count(place) > 1:
            raise SettingsError(f"EPP_ENDPOINTS: {place} is given twice")
    return tuple(endpoints)


def _endpoint(part: str) -> Endpoint:
    address, _, port = part.rpartition(":")
    bracketed = address.startswith("[") and address.endswith("]")
    try:
        ip = ip_address(address[1:-1] if bracketed else address)
    except ValueError:
        ip = None
    if ip is None or bracketed != (ip.version == 6) or not port.isdecimal() or not 1 <= int(port) <= _MAX_PORT:
        raise SettingsError(f"EPP_ENDPOINTS: expected ip:port, or [ip]:port for IPv6, not {part!r}")
    return Endpoint(name=part, address=str(ip), port=int(port))
