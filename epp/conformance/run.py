"""Runs checks against one target, one after the other, each within its bounds."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import grpc.aio

from epp.conformance import address, picked
from epp.conformance.check import Check, Level, Pool, Result
from epp.conformance.exchange import Ending, Half
from epp.conformance.lab import Described, Lab, get
from epp.conformance.stream import Limits
from epp.conformance.target import Credentials, UnreachableError, connect
from epp.conformance.verdict import FailedError, SkippedError, Verdict

_MAX_TEXT = 400
_LOOKS = 4
Told = Callable[[Result], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to check, where, and how."""

    target: tuple[str, int]
    health: tuple[str, int] | None = None
    credentials: Credentials = field(default_factory=Credentials)
    described: Described = field(default_factory=Described)
    limits: Limits = field(default_factory=Limits)


async def run_checks(plan: Plan, checks: Sequence[Check], told: Told = lambda _: None) -> list[Result]:
    """Run `checks`; each result is `told` when it is there. Raises UnreachableError when there is no target."""
    connection = await connect(*plan.target, plan.credentials, plan.limits)
    channels = [connection.channel]
    if plan.health is not None:
        channels.append(grpc.aio.insecure_channel(address.join(*plan.health)))
    lab = Lab(
        connection=connection,
        health=channels[-1],
        health_is_apart=plan.health is not None,
        described=plan.described,
        limits=plan.limits,
    )
    try:
        doubt = await _look(lab)
        results = []
        for check in checks:
            results.append(await _run_one(check, lab, doubt))
            told(results[-1])
        return results
    finally:
        for channel in channels:
            await channel.close()


def passed(results: Sequence[Result]) -> bool | None:
    """Whether the target keeps every MUST that was tried; None when that cannot be said."""
    musts = [result.verdict for result in results if result.check.level is Level.MUST]
    if Verdict.FAILED in musts:
        return False
    return None if Verdict.UNDECIDED in musts or Verdict.PASSED not in musts else True


async def _look(lab: Lab) -> str:
    """Learn endpoints from a few picks; a reason to doubt that this pool can show anything, else empty.

    Raises UnreachableError.
    """
    try:
        await asyncio.wait_for(lab.connection.channel.channel_ready(), lab.limits.seconds)
    except TimeoutError:
        if lab.connection.tls is not None and lab.connection.tls.alpn != "h2":
            return "no gRPC connection, as the target does not choose h2 by ALPN"
        raise UnreachableError(f"no gRPC connection within {lab.limits.seconds:g} s") from None
    halves: list[Half] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(lab.limits.check_seconds):
            await _learn(lab, halves)
    busy = bool(halves) and all(
        half.immediate is not None and half.immediate.status.code in (429, 503) for half in halves
    )
    if lab.described.empty or lab.described.endpoints or not busy:
        return ""
    return "the target has no endpoint for a plain request; if its pool is meant to be empty, give --empty"


async def _learn(lab: Lab, halves: list[Half]) -> None:
    """Ask for some picks, and note the endpoints that they name."""
    for request in (get(), lab.chat(500)) * _LOOKS:
        half = await lab.ask(request)
        halves.append(half)
        with suppress(FailedError):
            lab.seen.add(picked.first(picked.routed(half)))
        if half.ending in (Ending.SILENT, Ending.BROKEN):
            return


async def _run_one(check: Check, lab: Lab, doubt: str) -> Result:
    started, begun = time.time(), time.monotonic()
    verdict, seen = await _verdict(check, lab, doubt)
    return Result(check=check, verdict=verdict, seen=clean(seen), started=started, seconds=time.monotonic() - begun)


async def _verdict(check: Check, lab: Lab, doubt: str) -> tuple[Verdict, str]:
    if lab.described.empty and check.pool is Pool.SERVING:
        return Verdict.SKIPPED, "needs a pool with endpoints: run again without --empty"
    if check.pool is Pool.EMPTY and not lab.described.empty:
        return Verdict.SKIPPED, "needs a target whose pool is empty: run again with --empty"
    if doubt and check.pool is Pool.SERVING:
        return Verdict.UNDECIDED, doubt
    try:
        async with asyncio.timeout(lab.limits.check_seconds):
            await check.run(lab)
    except FailedError as error:
        return Verdict.FAILED, str(error)
    except SkippedError as error:
        return Verdict.SKIPPED, str(error)
    except TimeoutError:
        return Verdict.FAILED, f"not done after {lab.limits.check_seconds:g} s"
    except Exception as error:  # noqa: BLE001 - whatever a target makes of us, the other checks still run
        return Verdict.UNDECIDED, f"{type(error).__name__}: {error}"
    return Verdict.PASSED, ""


def clean(text: str) -> str:
    """Text that may come from the target, made fit for terminals and reports: printable, and not too long."""
    printable = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text[: _MAX_TEXT + 1])
    return printable if len(printable) <= _MAX_TEXT else printable[:_MAX_TEXT] + "…"
