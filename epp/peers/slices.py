"""Pods of the EPP's own Service, by its EndpointSlices: ready or not, since one that starts or drains has load too."""

from collections.abc import Iterator

from epp.endpoints.kubernetes import labels as names
from epp.endpoints.kubernetes.client import KubernetesClient
from epp.endpoints.kubernetes.objects import EndpointSlice
from epp.endpoints.kubernetes.watch import Change, Listed, Put, Resource, Timing, follow
from epp.endpoints.source import Source, keep_running


class ServicePods:
    """Follows the slices of one Service."""

    def __init__(self, client: KubernetesClient, namespace: str, service: str, timing: Timing) -> None:
        self._client = client
        self._timing = timing
        self._resource = Resource(
            path=f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices",
            kind=EndpointSlice,
            label_selector=f"{names.SERVICE_NAME}={service}",
        )
        self._slices: dict[str, EndpointSlice] = {}
        self.source = Source(f"peers of service {service}")

    async def run(self) -> None:
        """Follow until cancelled."""
        await self._client.open()
        try:
            await keep_running(self._follow, self.source)
        finally:
            await self._client.close()

    async def _follow(self) -> None:
        async for change in follow(self._client, self._resource, self.source, self._timing):
            self.apply(change)

    def apply(self, change: Change[EndpointSlice]) -> None:
        """Take in a change of the slices."""
        if isinstance(change, Listed):
            self._slices = {piece.metadata.name: piece for piece in change.objects}
        elif isinstance(change, Put):
            self._slices[change.object.metadata.name] = change.object
        else:
            self._slices.pop(change.name, None)

    def hosts(self) -> set[str]:
        """One address of each pod."""
        return set(self._addresses())

    def _addresses(self) -> Iterator[str]:
        for piece in self._slices.values():
            for entry in piece.endpoints or ():
                yield from entry.addresses[:1]
