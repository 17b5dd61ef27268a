"""`--probe`: asks EPP and workers directly. Its picks end at once, and no request reaches an engine's scheduler."""

import asyncio
from collections.abc import Iterable

import aiohttp

from epp.conformance import address, tls
from epp.conformance.check import Level
from epp.conformance.check import Result as KitResult
from epp.conformance.verdict import Verdict as KitVerdict
from epp.readiness.chain import UnreadableError
from epp.readiness.checks.sources import OWN, PROTOCOL
from epp.readiness.checks.tls import Speech, gateway_speech
from epp.readiness.live.check import LiveCheck, live_check
from epp.readiness.live.lab import KIT_NAMES, Lab
from epp.readiness.rule import Group, Mode, NotApplicableError, Problem, warning

SECONDS = 5.0


def _judge(target: str, results: Iterable[KitResult]) -> Iterable[Problem]:
    for result in results:
        text = f"{target}: {result.check.name}: {result.seen or result.check.rule}"
        if result.verdict is KitVerdict.FAILED:
            must = result.check.level is Level.MUST
            yield Problem(text, "EPP") if must else warning(text, "EPP")
        elif result.verdict is KitVerdict.UNDECIDED:
            raise UnreadableError(text)


async def _kit(lab: Lab, names: tuple[str, ...]) -> list[Problem]:
    problems: list[Problem] = []
    for target, health in lab.pickers():
        problems.extend(_judge(target, await lab.kit_results(target, health, names)))
    lab.seen = ", ".join(target for target, _ in lab.pickers())
    return problems


@live_check(
    34,
    "picker.health",
    mode=Mode.PROBE,
    group=Group.PICKER,
    needs=(30,),
    rule="the EPP's gRPC health service says SERVING for liveness, readiness and the ext_proc service",
    source=PROTOCOL,
    fix="see `epp status`: readiness waits until the pool is known",
)
async def health(lab: Lab) -> list[Problem]:
    return await _kit(lab, ("health.liveness", "health.readiness", "health.ext-proc-service", "health.suite-name"))


@live_check(
    35,
    "picker.tls",
    mode=Mode.PROBE,
    group=Group.PICKER,
    needs=(30,),
    rule="the EPP speaks TLS with ALPN h2 where the gateway does, and plain text where it does not",
    source="observed: which gateways speak TLS to a picker; a handshake",
    fix="set EPP_SECURE_SERVING; with Istio, a DestinationRule of mode SIMPLE with insecureSkipVerify for TLS",
)
async def handshake(lab: Lab) -> list[Problem]:
    expected = gateway_speech(lab.chain)
    problems: list[Problem] = []
    for target, _ in lab.pickers():
        try:
            shown = await tls.shown_by(*address.target(target), seconds=SECONDS)
        except tls.NoTlsError:
            shown = None
        spoken = Speech.PLAIN if shown is None else Speech.TLS
        lab.seen = f"{target} speaks {spoken}"
        if expected is not None and spoken is not expected:
            problems.append(Problem(f"EPP {target} speaks {spoken}, gateway expects {expected}", "EPP"))
        if shown is not None and shown.alpn != "h2":
            problems.append(Problem(f"EPP {target} does not choose h2 by ALPN", "EPP"))
    return problems


def _by_kit(number: int, name: str, *, needs: tuple[int, ...], rule: str, fix: str) -> LiveCheck:
    """A check that the checks of `epp conformance` under its number in `KIT_NAMES` decide."""
    check = live_check(
        number, name, mode=Mode.PROBE, group=Group.PICKER, needs=needs, rule=rule, source=PROTOCOL, fix=fix
    )
    return check(lambda lab: _kit(lab, KIT_NAMES[number]))


picks = _by_kit(
    36,
    "picker.picks",
    needs=(34, 35, 41),
    rule="a request gets one ready endpoint of the pool, the same in header and metadata",
    fix="see `epp explain --last 1`; `epp conformance` tells more",
)
subset = _by_kit(
    37,
    "picker.subset",
    needs=(36,),
    rule="a subset hint binds the EPP",
    fix="use an EPP that obeys the subset hint",
)
empty_subset = _by_kit(
    38,
    "picker.empty-subset",
    needs=(36,),
    rule="an empty subset, or one of strangers, is answered with 503",
    fix="use an EPP that refuses by ImmediateResponse; a gRPC error under FailOpen goes anywhere",
)
streams = _by_kit(
    39,
    "picker.streams",
    needs=(36,),
    rule="bodies in pieces and with trailers come back whole and in order; a request without a body is decided",
    fix="use an EPP that speaks FULL_DUPLEX_STREAMED",
)


@live_check(
    40,
    "picker.sheds",
    mode=Mode.PROBE,
    group=Group.PICKER,
    needs=(36,),
    rule="under overload a sheddable request gets 429, never a hang",
    source=PROTOCOL,
    fix="see the EPP's admission settings",
    advisory=True,
)
async def sheds(_lab: Lab) -> list[Problem]:
    raise NotApplicableError("overload cannot be forced from outside without loading the workers")


@live_check(
    49,
    "workers.serve",
    mode=Mode.PROBE,
    group=Group.WORKERS,
    needs=(42,),
    rule="each endpoint answers GET /v1/models, and lists the model",
    source=OWN + "; a 200 from /health precedes the registration of a model",
    fix="see the worker's log; with Dynamo, whether the worker has registered",
)
async def serve(lab: Lab) -> list[Problem]:
    places = lab.endpoints()
    answers = await asyncio.gather(*(_models(lab, place) for place in places))
    lab.seen = f"{len(places)} endpoints"
    return [problem for found in answers for problem in found]


async def _models(lab: Lab, place: str) -> list[Problem]:
    try:
        async with asyncio.timeout(SECONDS), lab.session.get(f"http://{place}/v1/models") as answer:
            document = await answer.json(content_type=None) if answer.ok else None
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as problem:
        return [Problem(f"cannot reach {place}: {str(problem) or type(problem).__name__}", f"endpoint {place}")]
    if document is None:
        return [Problem(f"{place} answers GET /v1/models with {answer.status}", f"endpoint {place}")]
    listed = document.get("data") if isinstance(document, dict) else None
    models = [one.get("id") for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    wanted = lab.demands.model
    if not models or (wanted is not None and wanted not in models):
        return [Problem(f"sidecar {place} healthy but model {wanted or ''} not registered", f"endpoint {place}")]
    return []


CHECKS: tuple[LiveCheck, ...] = (health, handshake, picks, subset, empty_subset, streams, sheds, serve)
