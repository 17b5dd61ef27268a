"""Checks that break something on purpose, by commands of the user's own; without them they are skipped."""

import asyncio
import shlex
import time
from collections.abc import Iterator

from epp.readiness.chain import UnreadableError
from epp.readiness.checks.sources import GIE, PROTOCOL
from epp.readiness.live import requests
from epp.readiness.live.check import LiveCheck, live_check
from epp.readiness.live.lab import Lab
from epp.readiness.live.traffic import POLL_SECONDS, TROUBLE
from epp.readiness.rule import Group, Mode, NotApplicableError, Problem, warning

TRIES = 3
"""Requests of each kind without an EPP."""
NO_ANSWER = 0
"""In the place of a status."""


@live_check(
    58,
    "traffic.heals",
    mode=Mode.DESTRUCTIVE,
    group=Group.TRAFFIC,
    needs=(52,),
    rule="when the picked worker dies, requests are served by others of the pool again, soon",
    source=PROTOCOL + "; retries and timeouts are the Gateway's",
    fix="see the route's retry policy, readiness probes of workers, and the EPP's suspects",
)
async def heals(lab: Lab) -> list[Problem]:
    if lab.demands.kill_command is None:
        raise NotApplicableError("destructive: give --kill-command")
    before = await requests.served_counts(lab)
    if len(before) < 2:
        raise NotApplicableError("the pool has one endpoint")
    text = requests.prompt(200)
    await requests.chat(lab, text)
    victim = next(iter(await requests.served_since(lab, before)), None)
    if victim is None:
        raise UnreadableError("no worker's own counter tells who served")
    pod = lab.endpoints()[victim]
    others = await requests.served_counts(lab, without=pod)
    await _run(lab.demands.kill_command, pod=pod.metadata.name, namespace=pod.metadata.namespace)
    begun, answered, failed, good = time.monotonic(), 0, 0, 0
    while good < 5:
        if await _status(lab, text) == 200:
            good, answered = good + 1, answered + 1
        else:
            good, failed = 0, failed + 1
        if time.monotonic() - begun > lab.demands.wait_seconds:
            return [Problem(f"after {victim} died, requests still fail: {failed} failed", f"endpoint {victim}")]
    lab.seen = f"after {victim} died, {failed} requests failed, then all were served; {_retries(lab)}"
    inside = sum((await requests.served_since(lab, others, answered, without=pod)).values())
    if inside < answered:
        return [warning(f"{answered} answered, {inside:g} by known endpoints: new pods, or a retry left the pool")]
    return []


def _retries(lab: Lab) -> str:
    rules = [rule for route in lab.chain.attached for rule in route.spec.rules or ()]
    attempts = [rule.retry.attempts or 1 for rule in rules if rule.retry is not None]
    return f"the route retries {max(attempts)} times" if attempts else "the route has no retry"


@live_check(
    57,
    "traffic.failure-mode",
    mode=Mode.DESTRUCTIVE,
    group=Group.TRAFFIC,
    needs=(52,),
    rule="without an EPP, FailClose answers 5xx and FailOpen serves from any worker; with it again, all is well",
    source=f"{GIE}, failureMode",
    fix="see how the Gateway takes failureMode; run two EPP replicas rather than rely on FailOpen",
)
async def failure_mode(lab: Lab) -> list[Problem]:
    stop, start = lab.demands.stop_command, lab.demands.start_command
    if stop is None or start is None:
        raise NotApplicableError("destructive: give --stop-epp-command and --start-epp-command")
    reference = lab.chain.pool.spec.endpoint_picker_ref
    mode = (reference.failure_mode if reference else None) or "FailClose"
    namespace = lab.chain.pool_place.namespace
    try:
        await _run(stop, namespace=namespace)
        await _gone(lab)
        bare = [await _status(lab, None) for _ in range(TRIES)]
        chats = [await _status(lab, requests.prompt()) for _ in range(TRIES)]
    finally:
        await _run(start, namespace=namespace)
    again = await _served_again(lab)
    lab.seen = f"{mode}, without the EPP: GET {_told(bare)}, POST {_told(chats)}; served again after {again or 0:.0f} s"
    problems = list(_opened(bare, chats) if mode == "FailOpen" else _closed(mode, [*bare, *chats]))
    return (
        [*problems, Problem("requests still fail after the EPP was started again", "EPP")]
        if again is None
        else problems
    )


async def _gone(lab: Lab) -> None:
    """Returns once no EPP tells its metrics. Raises UnreadableError when one still does."""
    deadline = time.monotonic() + lab.demands.wait_seconds
    while time.monotonic() < deadline:
        try:
            await requests.picker_count(lab)
        except UnreadableError:
            return
        await asyncio.sleep(POLL_SECONDS)
    raise UnreadableError(f"the EPP still answers {lab.demands.wait_seconds:g} s after --stop-epp-command")


async def _status(lab: Lab, text: str | None) -> int:
    """Of a chat, or of a request without a body."""
    try:
        answer = await (requests.send(lab, "GET", "/v1/models") if text is None else requests.chat(lab, text))
    except TROUBLE:
        return NO_ANSWER
    return answer.status


def _closed(mode: str, statuses: list[int]) -> Iterator[Problem]:
    """No request may be served that nobody scheduled."""
    served = [status for status in statuses if 200 <= status < 300]
    if served:
        yield Problem(f"failureMode {mode} not honoured: got {served[0]}, {len(served)} of {len(statuses)}", "Gateway")
    if NO_ANSWER in statuses:
        yield warning(f"failureMode {mode}: requests hang or are cut off in place of a 5xx", "Gateway")


def _opened(bare: list[int], chats: list[int]) -> Iterator[Problem]:
    """Any worker serves. Envoy and others lose a body that came before the failure: known, and not to be relied on."""
    wrong = [status for status in bare if status not in (200, 404)]
    if wrong:
        yield Problem(f"failureMode FailOpen not honoured: got {_told(wrong)}", "Gateway")
    if any(status != 200 for status in chats):
        yield warning(f"FailOpen does not save requests with a body: got {_told(chats)}", "Gateway")


def _told(statuses: list[int]) -> str:
    return "/".join("no answer" if status == NO_ANSWER else str(status) for status in dict.fromkeys(statuses))


async def _served_again(lab: Lab) -> float | None:
    """Seconds until a chat is served; None: not within the wait."""
    begun = time.monotonic()
    while (waited := time.monotonic() - begun) < lab.demands.wait_seconds:
        if await _status(lab, requests.prompt()) == 200:
            return waited
        await asyncio.sleep(POLL_SECONDS)
    return None


async def _run(command: str, **names: str) -> None:
    """Run the user's command. Raises UnreadableError when it fails."""
    words = [word.format(**names) for word in shlex.split(command)]
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.DEVNULL)
    if await process.wait() != 0:
        raise UnreadableError(f"{command!r} ended with status {process.returncode}")


CHECKS: tuple[LiveCheck, ...] = (failure_mode, heals)
