"""`epp simulate trace` and `epp simulate compare`."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from random import Random

from rich.console import Console
from rich.table import Table

from epp.scheduling.policies import POLICIES, policy_from
from epp.scheduling.policy import Policy
from epp.settings import Settings, SettingsError, load_settings
from epp.simulate.trace.requests import TraceError, TraceRequest, in_bursts, read_trace, spread_out
from epp.simulate.trace.run import Conditions, run
from epp.simulate.trace.summary import Summary, summarise


def trace(arguments: argparse.Namespace) -> int:
    """Replay with one policy."""
    settings = load_settings()
    if arguments.policy:
        settings = _named(settings, arguments.policy)
    return _report(arguments, {settings.scorers or settings.policy: settings})


def compare(arguments: argparse.Namespace) -> int:
    """Replay with several policies."""
    settings = load_settings()
    names = arguments.policies.split(",") if arguments.policies else list(POLICIES)
    scored = {each: settings.model_copy(update={"scorers": each, "config_file": None}) for each in arguments.scorers}
    return _report(arguments, {name: _named(settings, name) for name in names} | scored)


def _named(settings: Settings, policy: str) -> Settings:
    return settings.model_copy(update={"policy": policy, "scorers": None, "config_file": None})


def _report(arguments: argparse.Namespace, variants: Mapping[str, Settings]) -> int:
    try:
        conditions = _conditions(arguments)
        requests = _requests(arguments)
        policies = [(name, _build(settings)) for name, settings in variants.items()]
    except TraceError as error:
        raise SettingsError(str(error)) from None
    summaries = []
    for name, build in policies:
        summaries.append(summarise(name, requests, run(requests, build, conditions), conditions))
        if arguments.json:
            print(json.dumps(asdict(summaries[-1])), flush=True)  # noqa: T201
    if not arguments.json:
        Console(width=None if sys.stdout.isatty() else 140).print(_table(summaries))
    return 0


def _requests(arguments: argparse.Namespace) -> list[TraceRequest]:
    requests = read_trace(arguments.trace, speed=arguments.speed)[: arguments.first]
    if arguments.spread_ms > 0:
        requests = spread_out(requests, arguments.spread_ms / 1000, arguments.seed)
    return in_bursts(requests, arguments.bursts)


def _build(settings: Settings) -> Callable[[Random], Policy]:
    policy_from(settings)  # a wrong name is told before the run begins
    return lambda draw: policy_from(settings, draw)


def _conditions(arguments: argparse.Namespace) -> Conditions:
    try:
        slowness = tuple(float(factor) for factor in arguments.slowness.split(",") if factor)
    except ValueError:
        raise TraceError(f"--slowness {arguments.slowness!r}: expected numbers separated by commas") from None
    for name in ("workers", "cache_blocks", "replicas"):
        if getattr(arguments, name) < 1:
            raise TraceError(f"--{name.replace('_', '-')}: must be at least 1")
    if not 0 <= arguments.failed < arguments.workers:
        raise TraceError("--failed: must leave a worker")
    return Conditions(
        workers=arguments.workers,
        cache_blocks=arguments.cache_blocks,
        tokens_per_second=arguments.tokens_per_second,
        slowness=slowness,
        view_age=arguments.view_age,
        streamed=arguments.streamed,
        wrong_rates=arguments.wrong_rates,
        metrics_age=arguments.metrics_age,
        failed=arguments.failed,
        replicas=arguments.replicas,
        share_seconds=None if arguments.share_ms is None else max(0.0, arguments.share_ms) / 1000,
        seed=arguments.seed,
    )


def _table(summaries: list[Summary]) -> Table:
    first = summaries[0]
    table = Table(
        title=f"{first.requests} requests; nobody can be under {first.ttft_bound:.2f} s mean",
        caption="times in s to the first token; regret: above the worker that was truly the best for the request",
    )
    for heading in ("policy", "mean", "p50", "p90", "p99", "hit rate", "max/mean", "regret"):
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    for row in summaries:
        times = (row.ttft_mean, row.ttft_p50, row.ttft_p90, row.ttft_p99)
        rest = (f"{row.hit_rate:.3f}", f"{row.max_over_mean:.2f}", f"{row.regret_mean:.3f}")
        table.add_row(row.policy, *(f"{seconds:.2f}" for seconds in times), *rest)
    return table
