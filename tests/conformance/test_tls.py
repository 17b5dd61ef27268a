"""The kit reaches targets over TLS: as gateways do, verifying nothing, or as strictly as the user says."""

import asyncio
import ssl
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
import trustme

from epp.conformance.checks import ALL
from epp.conformance.run import Plan, passed, run_checks
from epp.conformance.stream import Limits
from epp.conformance.target import Credentials, Security, UnreachableError
from epp.conformance.verdict import Verdict

from .correct import Fault, serving

CHECKS = [check for check in ALL if check.name in ("connection.alpn-h2", "pick.form")]


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture
def server(authority):
    return authority.issue_cert("epp.default.svc")


def of_server(server, client_authority=None):
    pair = (server.private_key_pem.bytes(), server.cert_chain_pems[0].bytes())
    if client_authority is None:
        return grpc.ssl_server_credentials([pair])
    return grpc.ssl_server_credentials([pair], client_authority.cert_pem.bytes(), require_client_auth=True)


async def check(port, seconds=5.0, **credentials):
    plan = Plan(
        target=("127.0.0.1", port),
        credentials=Credentials(**credentials),
        limits=Limits(seconds=seconds, check_seconds=20),
    )
    return await run_checks(plan, CHECKS)


def written(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("security", [Security.AUTO, Security.TLS])
async def test_any_certificate_is_taken_unless_an_authority_is_given(server, security):
    async with serving(Fault(), tls=of_server(server)) as port:
        results = await check(port, security=security)
    assert [result.verdict for result in results] == [Verdict.PASSED, Verdict.PASSED]


async def test_the_right_authority_verifies_the_target(server, authority, tmp_path):
    ca = written(tmp_path, "ca.pem", authority.cert_pem.bytes())
    async with serving(Fault(), tls=of_server(server)) as port:
        assert passed(await check(port, ca=ca, server_name="epp.default.svc"))


async def test_a_wrong_authority_is_no_connection(server, tmp_path):
    ca = written(tmp_path, "ca.pem", trustme.CA().cert_pem.bytes())
    async with serving(Fault(), tls=of_server(server)) as port:
        with pytest.raises(UnreachableError, match="no gRPC connection"):
            await check(port, seconds=1, ca=ca, server_name="epp.default.svc")


async def test_a_client_certificate_is_shown(server, authority, tmp_path):
    client = authority.issue_cert("gateway")
    files = {
        "certificate": written(tmp_path, "cert.pem", client.cert_chain_pems[0].bytes()),
        "key": written(tmp_path, "key.pem", client.private_key_pem.bytes()),
    }
    async with serving(Fault(), tls=of_server(server, authority)) as port:
        assert passed(await check(port, **files))


async def test_tls_that_is_demanded_and_not_spoken_is_no_connection():
    async with serving(Fault()) as port:
        with pytest.raises(UnreachableError, match="no TLS handshake"):
            await check(port, security=Security.TLS)


@asynccontextmanager
async def without_alpn(server):
    """TLS that chooses no protocol."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.configure_cert(context)
    listener = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with listener:
        yield listener.sockets[0].getsockname()[1]


async def test_a_target_that_chooses_no_protocol_breaks_a_rule(server):
    async with without_alpn(server) as port:
        plan = Plan(target=("127.0.0.1", port), limits=Limits(seconds=1))
        alpn, other = await run_checks(plan, CHECKS)
    assert (alpn.verdict, alpn.seen) == (Verdict.FAILED, "offered h2, the target chose nothing")
    assert other.verdict is Verdict.UNDECIDED
    assert passed([alpn, other]) is False
