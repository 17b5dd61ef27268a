"""Runs the live checks that the options ask for, and says of the others why they were not tried."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from epp.conformance import address
from epp.readiness.chain import Chain
from epp.readiness.live import breaking, disaggregated, perf, probe, traffic
from epp.readiness.live.check import not_asked, run_live
from epp.readiness.live.lab import Demands, Lab, Places
from epp.readiness.rule import Result
from epp.readiness.usage import UsageError

TRAFFIC = (*traffic.CHECKS, *disaggregated.CHECKS, *breaking.CHECKS)
LIVE = tuple(check for check in (*probe.CHECKS, *TRAFFIC) if check.rule.number != probe.handshake.rule.number)


@dataclass(frozen=True, slots=True)
class Asked:
    """All results, and what a load showed, if there was one."""

    results: list[Result]
    load: str = ""


def check_usage(arguments: argparse.Namespace) -> None:
    """Raises UsageError, and AddressError of the protocol kit as one."""
    live = arguments.probe or arguments.traffic or arguments.perf
    if live and arguments.offline:
        raise UsageError("--probe, --traffic, --perf: not with --offline")
    if not 0 <= arguments.perf <= perf.MOST_SECONDS:
        raise UsageError(f"--perf {arguments.perf:g}: expected seconds, up to {perf.MOST_SECONDS:g}")
    if not 1 <= arguments.requests <= 1000:
        raise UsageError(f"--requests {arguments.requests}: expected 1 to 1000")
    for option in ("url", "epp_metrics", "epp_status"):
        text: str | None = getattr(arguments, option)
        if text is not None and not text.startswith(("http://", "https://")):
            raise UsageError(f"--{option.replace('_', '-')} {text}: expected http://HOST:PORT")
    try:
        for place in filter(None, (arguments.epp, arguments.health)):
            address.target(place)
    except address.AddressError as problem:
        raise UsageError(f"--epp, --health: {problem}") from None
    if (arguments.stop_epp_command is None) != (arguments.start_epp_command is None):
        raise UsageError("--stop-epp-command, --start-epp-command: expected both or none")
    destructive = arguments.kill_command or arguments.stop_epp_command
    if destructive and not arguments.traffic:
        raise UsageError("--kill-command, --stop-epp-command: expected --traffic too")
    if arguments.api_key_env and not os.environ.get(arguments.api_key_env):
        raise UsageError(f"--api-key-env {arguments.api_key_env}: the variable is not set")


async def ask(arguments: argparse.Namespace, chain: Chain, results: Sequence[Result]) -> Asked:
    """The results with those of live checks."""
    found = list(results)
    async with aiohttp.ClientSession() as session:
        lab = Lab(chain=chain, places=_places(arguments), demands=_demands(arguments), session=session)
        if arguments.probe:
            found = await run_live(lab, probe.CHECKS, found)
        else:
            found = not_asked(probe.CHECKS, found, "asks the EPP: --probe")
        if arguments.traffic:
            found = await run_live(lab, TRAFFIC, found)
        else:
            found = not_asked(TRAFFIC, found, "sends requests: --traffic")
        load = str(await perf.load(lab)) if arguments.perf else ""
    return Asked(found, load)


def _places(arguments: argparse.Namespace) -> Places:
    return Places(
        picker=arguments.epp,
        health=arguments.health,
        metrics=arguments.epp_metrics,
        admin=arguments.epp_status,
        gateway=arguments.url,
        host=arguments.host,
    )


def _demands(arguments: argparse.Namespace) -> Demands:
    return Demands(
        model=arguments.model,
        requests=arguments.requests,
        wait_seconds=arguments.wait,
        kill_command=arguments.kill_command,
        stop_command=arguments.stop_epp_command,
        start_command=arguments.start_epp_command,
        perf_seconds=arguments.perf,
        api_key=os.environ.get(arguments.api_key_env) if arguments.api_key_env else None,
    )
