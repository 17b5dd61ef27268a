"""Requests to the Kubernetes API by the official client: its configuration, its TLS, its token; the JSON is ours.

No other module imports `kubernetes`, and this one only when it is opened: the import takes 0.3 s and 35 MB.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import aiohttp
import msgspec

if TYPE_CHECKING:
    from kubernetes.aio.client.api_client import ApiClient

from epp.endpoints.kubernetes.objects import ApiStatus

CONNECT_SECONDS = 10.0
UNAUTHORIZED = 401


class ApiError(Exception):
    """The API server answered, with an error; `status` is its HTTP code."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status} {message}")
        self.status = status


class UnreachableError(Exception):
    """No answer from the API server, or the answer broke off."""


class NoClusterError(Exception):
    """Neither a service account nor a kubeconfig tells where the API server is."""


class KubernetesClient:
    """One connection pool to one API server, for the life of the process."""

    def __init__(self, kubeconfig: str | None = None) -> None:
        self._kubeconfig = kubeconfig
        self._api: ApiClient | None = None
        self._reloading = asyncio.Lock()

    async def open(self) -> None:
        """Find the API server: by the pod's service account, else by kubeconfig. Raises NoClusterError."""
        self._api = await self._client()

    async def close(self) -> None:
        """Close all connections."""
        if self._api is not None:
            await self._api.close()
            self._api = None

    @asynccontextmanager
    async def get(
        self, path: str, query: Mapping[str, str], *, silence_seconds: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A successful answer to GET `path`; no byte for `silence_seconds` ends it.

        A refused token is read anew once, since it rotates under us, and so is the CA. Raises ApiError or
        UnreachableError, also for what goes wrong while the caller reads the body.
        """
        try:
            api = self._opened()
            try:
                response = await _send(api, path, query, silence_seconds)
            except aiohttp.ClientConnectorCertificateError:
                response = await _send(await self._reload(api), path, query, silence_seconds)
            if response.status == UNAUTHORIZED:
                response.close()
                response = await _send(await self._reload(api), path, query, silence_seconds)
            async with response:
                if not response.ok:
                    raise ApiError(response.status, _reason(await response.read(), response.reason))
                yield response
        except (aiohttp.ClientError, OSError, NoClusterError) as error:
            raise UnreachableError(str(error) or type(error).__name__) from error

    async def apply(self, path: str, document: Mapping[str, object]) -> None:
        """Server-side apply of one object at `path`. Raises ApiError or UnreachableError."""
        try:
            api = self._opened()
            method, url, headers, body, *_ = await api.param_serialize(
                "PATCH",
                path,
                query_params=[("fieldManager", "epp"), ("force", "true")],
                header_params={"Accept": "application/json", "Content-Type": "application/apply-patch+yaml"},
                body=document,
                auth_settings=["BearerToken"],
            )
            answer = await api.call_api(method, url, headers, body, _request_timeout=CONNECT_SECONDS)
            async with answer.response as response:
                if not response.ok:
                    raise ApiError(response.status, _reason(await response.read(), response.reason))
        except (aiohttp.ClientError, OSError) as error:
            raise UnreachableError(str(error) or type(error).__name__) from error

    def _opened(self) -> "ApiClient":
        if self._api is None:
            raise UnreachableError("the client is closed")
        return self._api

    async def _reload(self, refused: "ApiClient") -> "ApiClient":
        """A client with the credentials as they are now; one reload serves all requests that `refused` failed."""
        async with self._reloading:
            if self._api is refused:
                self._api = await self._client()
                await refused.close()
            return self._opened()

    async def _client(self) -> "ApiClient":
        from kubernetes.aio.client.api_client import ApiClient
        from kubernetes.aio.client.configuration import Configuration
        from kubernetes.aio.config.config_exception import ConfigException
        from kubernetes.aio.config.incluster_config import load_incluster_config
        from kubernetes.aio.config.kube_config import load_kube_config

        configuration = Configuration()
        try:
            if self._kubeconfig is not None:
                await load_kube_config(self._kubeconfig, client_configuration=configuration)
            elif "KUBERNETES_SERVICE_HOST" in os.environ:
                load_incluster_config(configuration)
            else:
                await load_kube_config(client_configuration=configuration)
        except (ConfigException, OSError) as error:
            raise NoClusterError(f"no Kubernetes API server is known: {error}") from error
        return ApiClient(configuration)


async def _send(
    api: "ApiClient", path: str, query: Mapping[str, str], silence_seconds: float
) -> aiohttp.ClientResponse:
    timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS, sock_read=silence_seconds)
    method, url, headers, *_ = await api.param_serialize(
        "GET",
        path,
        query_params=list(query.items()),
        header_params={"Accept": "application/json"},
        auth_settings=["BearerToken"],
    )
    answer = await api.call_api(method, url, headers, _request_timeout=timeout)
    response: aiohttp.ClientResponse = answer.response
    return response


def _reason(body: bytes, reason: str | None) -> str:
    try:
        return msgspec.json.decode(body, type=ApiStatus).message or reason or ""
    except msgspec.DecodeError:
        return reason or ""
