"""TLS on the ext_proc port, and health beside it."""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from grpc_health.v1 import health_pb2, health_pb2_grpc

from epp.extproc.transport.choice import transport_for
from epp.extproc.transport.grpcio import SERVICE
from epp.extproc.transport.health import Health, HealthServer
from epp.settings import Settings, SettingsError, TransportName

from .grpc_gateway import Gateway
from .world import World, destination, request_headers


def on_loopback(**settings: Any) -> Settings:
    return Settings(host="127.0.0.1", grpc_port=0, **settings)


@asynccontextmanager
async def serving(carrier: TransportName, **settings: object) -> AsyncIterator[int]:
    transport = transport_for(on_loopback(transport=carrier, **settings), World().servicer.serve)
    try:
        yield await transport.start()
    finally:
        await transport.stop()


async def pick(port: int, credentials: grpc.ChannelCredentials, name: str = "localhost") -> str:
    """The destination that a gateway with these credentials gets."""
    options = (("grpc.ssl_target_name_override", name),)
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options) as channel:
        gateway = Gateway(channel)
        await gateway.send(request_headers(end=True))
        return destination((await gateway.answers(1))[0])[0]


async def end_without_a_word(port: int, credentials: grpc.ChannelCredentials) -> grpc.StatusCode:
    """How a call ends on which the gateway sends nothing."""
    options = (("grpc.ssl_target_name_override", "localhost"),)
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options) as channel:
        return await Gateway(channel).call.code()


def presented(port: int) -> tuple[bytes, str | None]:
    """The certificate that the server shows, and the protocol it agrees on."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])

    with socket.create_connection(("127.0.0.1", port)) as raw, context.wrap_socket(raw) as tls:
        certificate = tls.getpeercert(binary_form=True)
        assert certificate is not None
        return certificate, tls.selected_alpn_protocol()


def written(folder: Path, authority: trustme.CA, *names: str) -> tuple[Path, Path]:
    """A certificate and key in files, put there as one replaces a mounted secret."""
    issued = authority.issue_cert(*names)
    certificate, key = folder / "tls.crt", folder / "tls.key"
    for path, blob in ((certificate, issued.cert_chain_pems[0]), (key, issued.private_key_pem)):
        blob.write_to_path(path.with_suffix(".new"))
        os.replace(path.with_suffix(".new"), path)
    return certificate, key


def trusting(authority: trustme.CA, client: trustme.LeafCert | None = None) -> grpc.ChannelCredentials:
    root = authority.cert_pem.bytes()
    if client is None:
        return grpc.ssl_channel_credentials(root)
    return grpc.ssl_channel_credentials(root, client.private_key_pem.bytes(), client.cert_chain_pems[0].bytes())


async def test_self_signed_with_an_elliptic_key_and_http2(carrier: TransportName) -> None:

    async with serving(carrier) as port:
        der, protocol = await asyncio.to_thread(presented, port)
        certificate = x509.load_der_x509_certificate(der)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert protocol == "h2"
        assert isinstance(certificate.public_key(), ec.EllipticCurvePublicKey)
        assert "localhost" in names.get_values_for_type(x509.DNSName)
        pem = ssl.DER_cert_to_PEM_cert(der).encode()
        assert await pick(port, grpc.ssl_channel_credentials(pem))


async def test_mounted_files_are_read_again_when_they_change(tmp_path: Path, carrier: TransportName) -> None:
    old, new = trustme.CA(), trustme.CA()
    certificate, key = written(tmp_path, old, "epp.example")
    async with serving(carrier, tls_cert_file=certificate, tls_key_file=key) as port:
        assert await pick(port, trusting(old), "epp.example")
        written(tmp_path, new, "epp.example")
        assert await pick(port, trusting(new), "epp.example")
        key.write_text("half written")
        assert await pick(port, trusting(new), "epp.example")


async def test_mutual_tls_takes_only_certificates_of_the_authority_with_an_allowed_name(
    tmp_path: Path, carrier: TransportName
) -> None:
    authority = trustme.CA()
    certificate, key = written(tmp_path, authority, "localhost")
    clients = tmp_path / "clients.pem"
    authority.cert_pem.write_to_path(clients)
    settings = {"tls_cert_file": certificate, "tls_key_file": key, "tls_client_ca_file": clients}
    async with serving(carrier, **settings, tls_client_names="gateway.example") as port:
        assert await pick(port, trusting(authority, authority.issue_cert("gateway.example")))
        other = trusting(authority, authority.issue_cert("other.example"))
        assert await end_without_a_word(port, other) is grpc.StatusCode.PERMISSION_DENIED
        stranger = trustme.CA().issue_cert("gateway.example")
        for client in (None, stranger):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await pick(port, trusting(authority, client))
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tls_cert_file": "tls.crt"}, "EPP_TLS_KEY_FILE: expected a file"),
        ({"tls_key_file": "tls.key"}, "EPP_TLS_CERT_FILE: expected a file"),
        ({"tls_cert_file": "absent", "tls_key_file": "tls.key"}, "EPP_TLS_CERT_FILE: .*absent: No such file"),
        ({"tls_cert_file": "tls.key", "tls_key_file": "tls.key"}, "EPP_TLS_CERT_FILE: expected PEM certificates"),
        ({"tls_cert_file": "tls.crt", "tls_key_file": "tls.crt"}, "EPP_TLS_KEY_FILE: expected a PEM private key"),
        ({"tls_cert_file": "tls.crt", "tls_key_file": "other.key"}, "EPP_TLS_KEY_FILE: expected the key of"),
        ({"tls_client_ca_file": "tls.key"}, "EPP_TLS_CLIENT_CA_FILE: expected PEM certificates"),
    ],
)
def test_wrong_files_are_named_at_the_start(
    tmp_path: Path, settings: dict[str, str], message: str, carrier: TransportName
) -> None:
    authority = trustme.CA()
    written(tmp_path, authority, "localhost")
    authority.issue_cert("localhost").private_key_pem.write_to_path(tmp_path / "other.key")
    paths = {name: tmp_path / value for name, value in settings.items()}
    with pytest.raises(SettingsError, match=message):
        transport_for(on_loopback(transport=carrier, **paths), World().servicer.serve)


NAMES = ("liveness", "readiness", SERVICE, "inference-extension", "")


async def statuses(channel: grpc.aio.Channel) -> tuple[list[bool], dict[str, bool]]:
    """What Check says of each name, and what List says."""
    stub = health_pb2_grpc.HealthStub(channel)
    serving = health_pb2.HealthCheckResponse.SERVING
    checked = [(await stub.Check(health_pb2.HealthCheckRequest(service=name))).status == serving for name in NAMES]
    listed = (await stub.List(health_pb2.HealthListRequest())).statuses
    return checked, {name: status.status == serving for name, status in listed.items()}


async def test_health_names_follow_readiness_and_liveness_does_not(carrier: TransportName) -> None:
    health = Health()
    server = HealthServer(health, host="127.0.0.1", port=0)
    transport = transport_for(
        on_loopback(transport=carrier, secure_serving=False), World().servicer.serve, health=health
    )
    for port in (await server.start(), await transport.start()):
        await health.set_ready(False)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="readiness"))
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            checked, listed = await statuses(channel)
            assert checked == [True, False, False, False, False]
            assert listed == dict(zip(NAMES, checked, strict=True))
            await health.set_ready(True)
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            assert (await statuses(channel))[0] == [True] * 5
            watch.cancel()
            with pytest.raises(grpc.aio.AioRpcError) as unknown:
                await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="other"))
            assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
    await transport.stop()
    await server.stop()


async def test_an_old_connection_is_replaced_without_harm_to_its_streams(carrier: TransportName) -> None:
    async with serving(carrier, max_connection_age_seconds=0.2) as port:
        pem = ssl.DER_cert_to_PEM_cert(await _certificate(port)).encode()
        credentials = grpc.ssl_channel_credentials(pem)
        options = (("grpc.ssl_target_name_override", "localhost"),)
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options) as channel:
            gateways = []
            for _ in range(8):
                gateway = Gateway(channel)
                await gateway.send(request_headers(end=True))
                assert destination((await gateway.answers(1))[0])[0]
                gateways.append(gateway)
                await asyncio.sleep(0.1)
            for gateway in gateways:
                await gateway.call.done_writing()
                assert await gateway.rest() == []


async def _certificate(port: int) -> bytes:

    return (await asyncio.to_thread(presented, port))[0]


async def test_a_handshake_that_stalls_is_given_up_and_keeps_nobody_waiting():
    transport = transport_for(
        on_loopback(transport=TransportName.HTTP2, http2_handshake_seconds=1.0), World().servicer.serve
    )
    port = await transport.start()
    try:
        stalled = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        for _, writer in stalled[:10]:
            writer.write(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a ClientHello of 512 bytes
        shown, protocol = await asyncio.to_thread(presented, port)
        assert (bool(shown), protocol) == (True, "h2")
        for reader, writer in stalled:
            assert await asyncio.wait_for(reader.read(), 30) == b""
            writer.close()
        assert transport.status().connections == 0
    finally:
        await transport.stop()
