"""gRPC health: the names that probes and proxies ask for (protocol rule P14)."""

import asyncio

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from epp.conformance.check import Level, Pool, check
from epp.conformance.lab import Lab
from epp.conformance.sources import HEALTH, OBSERVED, PROTOCOL, SUITE
from epp.conformance.verdict import FailedError, SkippedError

_CHECK = "/grpc.health.v1.Health/Check"
_WATCH = "/grpc.health.v1.Health/Watch"
_SERVING = health_pb2.HealthCheckResponse.SERVING


async def _serving(lab: Lab, name: str) -> None:
    status = await _status(lab, name)
    if status != "SERVING":
        raise FailedError(f"Check({name!r}): {status}")


async def _status(lab: Lab, name: str) -> str:
    """What Check says for a name: a serving status, or the code of its error."""
    request = health_pb2.HealthCheckRequest(service=name).SerializeToString()
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = lab.health.unary_unary(_CHECK)
    try:
        data = await call(request, timeout=lab.limits.seconds)
        status = health_pb2.HealthCheckResponse.FromString(data).status
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(status))
    except (DecodeError, ValueError):
        return "no HealthCheckResponse"
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED and not lab.health_is_apart:
            raise SkippedError("no health service at TARGET: give --health with its address") from None
        return error.code().name


@check(
    "health.liveness",
    rule="P14: `liveness` is SERVING whenever the process answers",
    source=PROTOCOL,
    breach="kubelet restarts healthy pickers, or cannot see hung ones",
    pool=Pool.ANY,
)
async def liveness(lab: Lab) -> None:
    await _serving(lab, "liveness")


@check(
    "health.readiness",
    rule="P14: `readiness` is SERVING once the pool is known",
    source=PROTOCOL,
    breach="the picker never gets traffic, or gets it before it knows a worker",
)
async def readiness(lab: Lab) -> None:
    await _serving(lab, "readiness")


@check(
    "health.ext-proc-service",
    rule="P14: `envoy.service.ext_proc.v3.ExternalProcessor` is SERVING once the pool is known",
    source=PROTOCOL + "; what Envoy clusters with a health check ask for",
    breach="Envoy takes every picker for dead: 500, or the failure mode",
)
async def ext_proc_service(lab: Lab) -> None:
    await _serving(lab, "envoy.service.ext_proc.v3.ExternalProcessor")


@check(
    "health.suite-name",
    level=Level.SHOULD,
    rule="`inference-extension` is SERVING once the pool is known",
    source=SUITE + ", resources/base.yaml: the probes of its pickers",
    breach="the picker never becomes Ready in the Gateway conformance suite, and in manifests copied from it",
)
async def suite_name(lab: Lab) -> None:
    await _serving(lab, "inference-extension")


@check(
    "health.empty-name",
    level=Level.SHOULD,
    rule="The empty name is the state of the whole server",
    source=HEALTH,
    breach="probes without a service name, the default of Kubernetes, never succeed",
)
async def empty_name(lab: Lab) -> None:
    await _serving(lab, "")


@check(
    "health.watch",
    level=Level.SHOULD,
    rule="Watch tells the state at once",
    source=HEALTH,
    breach="gRPC clients with health checking, as service meshes have, see no state and send nothing",
)
async def watch(lab: Lab) -> None:
    await _status(lab, "readiness")
    request = health_pb2.HealthCheckRequest(service="readiness").SerializeToString()
    call: grpc.aio.UnaryStreamCall[bytes, bytes] = lab.health.unary_stream(_WATCH)(request)
    try:
        data = await asyncio.wait_for(call.read(), lab.limits.seconds)
    except TimeoutError:
        raise FailedError(f"Watch('readiness') told nothing for {lab.limits.seconds:g} s") from None
    except grpc.aio.AioRpcError as error:
        raise FailedError(f"Watch('readiness'): {error.code().name}") from None
    finally:
        call.cancel()
    if not isinstance(data, bytes) or health_pb2.HealthCheckResponse.FromString(data).status != _SERVING:
        raise FailedError("Watch('readiness'): not SERVING")


@check(
    "health.unknown-name",
    level=Level.SHOULD,
    rule="Check of a name that does not exist is NOT_FOUND",
    source=HEALTH + "; " + OBSERVED + "probes with a misspelt name",
    breach="a misspelt probe passes for ever, and nobody notices that it checks nothing",
    pool=Pool.ANY,
)
async def unknown_name(lab: Lab) -> None:
    status = await _status(lab, "epp-conformance-no-such-service")
    if status != "NOT_FOUND":
        raise FailedError(f"Check('epp-conformance-no-such-service'): {status}")


CHECKS = (liveness, readiness, ext_proc_service, suite_name, empty_name, watch, unknown_name)
