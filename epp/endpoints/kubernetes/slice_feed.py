"""The EndpointSlices of one Service, followed."""

from collections.abc import Iterator

from epp.endpoints.endpoint import Endpoint, Place
from epp.endpoints.kubernetes import labels as names
from epp.endpoints.kubernetes.cluster import Cluster, Defaults
from epp.endpoints.kubernetes.objects import EndpointSlice, SliceEndpoint
from epp.endpoints.kubernetes.watch import Change, Listed, Put, Resource, follow
from epp.endpoints.roles import ANY_ROLE
from epp.endpoints.source import Source


class SliceFeed:
    """All ready endpoints of a Service; a slice says nothing of roles, engines or restarts."""

    def __init__(self, cluster: Cluster, defaults: Defaults, service: str, ports: tuple[str, ...] = ()) -> None:
        self._cluster = cluster
        self._defaults = defaults
        self._resource = Resource(
            path=f"/apis/discovery.k8s.io/v1/namespaces/{cluster.namespace}/endpointslices",
            kind=EndpointSlice,
            label_selector=f"{names.SERVICE_NAME}={service}",
        )
        self._ports = ports
        self._source = Source(f"endpoint slices of {service}", cluster.metrics)
        self._slices: dict[str, EndpointSlice] = {}
        self.sources = (self._source,)

    def problem(self) -> str:
        """Nothing that a person must mend."""
        return ""

    async def run(self) -> None:
        """Follow the slices until cancelled."""
        async for change in follow(self._cluster.client, self._resource, self._source, self._cluster.timing):
            self.apply(change)
            self._cluster.changed()

    def apply(self, change: Change[EndpointSlice]) -> None:
        """Take in a change of the slices."""
        if isinstance(change, Listed):
            self._slices = {piece.metadata.name: piece for piece in change.objects}
        elif isinstance(change, Put):
            self._slices[change.object.metadata.name] = change.object
        else:
            self._slices.pop(change.name, None)

    def endpoints(self) -> list[Endpoint]:
        """All endpoints there are now; one that moves between slices may be in two for a while."""
        found: dict[str, Endpoint] = {}
        for piece in self._of_the_family():
            ports = list(self._serving(piece))
            for entry in piece.endpoints or ():
                if entry.conditions.ready is not False and not entry.conditions.terminating:
                    found |= {endpoint.place: endpoint for endpoint in self._of(entry, ports)}
        return list(found.values())

    def at(self, place: Place) -> Endpoint | None:
        """The one of them at `place`."""
        return next((endpoint for endpoint in self.endpoints() if endpoint.place == place), None)

    def _of_the_family(self) -> list[EndpointSlice]:
        """The slices of the wanted family, else of the one there is: a pod with both must not count twice."""
        wanted = "IPv6" if self._defaults.ipv6 else "IPv4"
        routable = [piece for piece in self._slices.values() if piece.address_type in ("IPv4", "IPv6")]
        return [piece for piece in routable if piece.address_type == wanted] or routable

    def _serving(self, piece: EndpointSlice) -> Iterator[int]:
        """The wanted ports, in the order in which they are wanted: a port's place is its rank."""
        by_name = {port.name or "": port.port for port in piece.ports or () if port.port is not None}
        for wanted in self._ports or by_name:
            if wanted in by_name:
                yield by_name[wanted]
            elif wanted.isdecimal() and int(wanted) in by_name.values():
                yield int(wanted)

    def _of(self, entry: SliceEndpoint, ports: list[int]) -> Iterator[Endpoint]:
        address = entry.addresses[0] if entry.addresses else ""
        pod = entry.target_ref
        events, replay = self._defaults.events_port, self._defaults.replay_port
        for rank, port in enumerate(ports if address else ()):
            name = pod.name if pod and pod.name else address
            yield Endpoint(
                name=name if len(ports) == 1 else f"{name}-rank-{rank}",
                address=address,
                port=port,
                uid=pod.uid if pod else "",
                rank=rank,
                roles=self._defaults.roles or ANY_ROLE,
                events_port=None if events is None else events + rank,
                replay_port=None if replay is None else replay + rank,
            )
