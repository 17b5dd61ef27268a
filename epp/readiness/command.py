"""`epp validate`: judge the chain, of a snapshot or of a cluster."""

import argparse
import asyncio
import sys
import traceback
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from epp.conformance.report.ctrf import ctrf
from epp.conformance.report.junit import junit
from epp.endpoints.kubernetes.client import ApiError, KubernetesClient, NoClusterError, UnreachableError
from epp.readiness import checks
from epp.readiness.aicr import contract
from epp.readiness.aicr.constraint import Constraint, ConstraintError, constraint
from epp.readiness.aicr.covers import platform_lines
from epp.readiness.aicr.recipe import RecipeError, read_recipe
from epp.readiness.chain import Chain
from epp.readiness.find import TargetError, find, ref
from epp.readiness.judge import Exit, exit_code, headline, judge
from epp.readiness.live.ask import LIVE, Asked, ask, check_usage
from epp.readiness.policy import API_PATHS, Policy
from epp.readiness.report.evidence import evidence
from epp.readiness.report.outcome import Outcome, report
from epp.readiness.report.table import show, show_rules
from epp.readiness.snapshot import config_map, files
from epp.readiness.snapshot.command import complain, live_snapshot
from epp.readiness.snapshot.document import Snapshot
from epp.readiness.snapshot.epp_status import StatusError
from epp.readiness.snapshot.files import SnapshotError
from epp.readiness.usage import UsageError

BAD_INPUT = (UsageError, SnapshotError, TargetError, RecipeError, ConstraintError)
NO_ANSWER = (NoClusterError, UnreachableError, ApiError, StatusError)


def run(arguments: argparse.Namespace) -> int:
    """Judge and report; the exit codes are those of `Exit`."""
    if arguments.list:
        show_rules([*(check.rule for check in checks.ALL), *(check.rule for check in LIVE)], Console())
        return 0
    if arguments.aicr:
        return _run_for_aicr(arguments)
    try:
        _check_usage(arguments)
        snapshot, chain, asked = _judged(arguments, _policy(arguments))
        _report(arguments, outcome(arguments, chain, snapshot, asked))
    except BAD_INPUT as problem:
        return complain(Exit.BAD_INPUT, str(problem))
    except OSError as problem:
        return complain(Exit.BAD_INPUT, f"{problem.filename}: {problem.strerror}")
    except NO_ANSWER as problem:
        return complain(Exit.UNDECIDED, str(problem))
    except Exception as problem:  # noqa: BLE001 - Python's own exit code of a crash, 1, would say not ready
        traceback.print_exc()
        return complain(Exit.UNDECIDED, f"internal: {type(problem).__name__}: {problem}")
    return exit_code(asked.results)


def _run_for_aicr(arguments: argparse.Namespace) -> int:
    """The same, under the contract of AICR's check images."""
    try:
        given = contract.mounted()
        _check_usage(arguments)
        policy = _policy(arguments)
        if given.recipe is not None:
            policy = replace(policy, constraints=(*policy.constraints, *given.recipe.constraints))
        snapshot, chain, asked = _judged(arguments, policy)
    except (*BAD_INPUT, *NO_ANSWER, OSError) as problem:
        contract.leave_message(str(problem))
        return complain(contract.OTHER, str(problem))
    except Exception as problem:  # noqa: BLE001 - Python's own exit code of a crash, 1, would be a verdict to AICR
        contract.leave_message(f"internal: {type(problem).__name__}: {problem}")
        traceback.print_exc()
        return contract.OTHER
    seen = outcome(arguments, chain, snapshot, asked)
    for line in contract.lines(seen, given):
        print(line)  # noqa: T201 - evidence goes to stdout
    contract.leave_message(seen.headline)
    return contract.code(asked.results, exit_code(asked.results))


def _judged(arguments: argparse.Namespace, policy: Policy) -> tuple[Snapshot, Chain, Asked]:
    """What the snapshot shows, and what those who were asked have said."""
    snapshot = asyncio.run(_snapshot(arguments))
    chain = _chain(arguments, policy, snapshot)
    return snapshot, chain, asyncio.run(ask(arguments, chain, judge(chain, checks.ALL)))


def _check_usage(arguments: argparse.Namespace) -> None:
    if arguments.offline and not arguments.snapshot:
        raise UsageError("--offline: expected a snapshot too: -s FILE")
    if arguments.snapshot and arguments.snapshot.startswith(config_map.SCHEME):
        config_map.place(arguments.snapshot)
    if arguments.min_timeout < 0 or arguments.min_ready < 0 or arguments.max_age <= 0:
        raise UsageError("--min-timeout, --min-ready, --max-age: expected no negative number")
    check_usage(arguments)


def _policy(arguments: argparse.Namespace) -> Policy:
    given = [_constraint(text) for text in arguments.constraint]
    if arguments.recipe:
        given.extend(read_recipe(arguments.recipe).constraints)
    return Policy(
        max_age_hours=arguments.max_age,
        failure_mode=arguments.failure_mode,
        paths=tuple(arguments.path) or API_PATHS,
        min_request_seconds=arguments.min_timeout,
        min_ready=arguments.min_ready,
        need_address=not arguments.no_address,
        scoped=arguments.scoped,
        constraints=tuple(given),
    )


def _constraint(text: str) -> Constraint:
    """`NAME VALUE`, with or without blanks around the operator."""
    at = next((at for at, char in enumerate(text) if char in " <>=!"), len(text))
    return constraint(text[:at], text[at:].strip())


async def _snapshot(arguments: argparse.Namespace) -> Snapshot:
    """The recorded snapshot, else a fresh one. Raises SnapshotError and what says that there is no cluster."""
    place: str | None = arguments.snapshot
    if place is not None and not place.startswith(config_map.SCHEME):
        return files.read(place)
    client = KubernetesClient(arguments.kubeconfig)
    await client.open()
    try:
        return await (live_snapshot(arguments, client) if place is None else config_map.read(client, place))
    finally:
        await client.close()


def _chain(arguments: argparse.Namespace, policy: Policy, snapshot: Snapshot) -> Chain:
    namespaces: list[str] = arguments.namespace
    own = namespaces[0] if len(namespaces) == 1 else None
    return find(
        snapshot.body,
        policy,
        datetime.now(UTC),
        namespaces=namespaces,
        pool=ref(arguments.pool, "--pool", own) if arguments.pool else None,
        gateway=ref(arguments.gateway, "--gateway", own) if arguments.gateway else None,
    )


def outcome(arguments: argparse.Namespace, chain: Chain, snapshot: Snapshot, asked: Asked) -> Outcome:
    """What reports tell."""
    named = f"Gateway {chain.gateway_ref or '?'}, InferencePool {chain.pool_ref or '?'} ({chain.entry})"
    return Outcome(
        results=tuple(asked.results),
        headline=headline(asked.results, offline=arguments.snapshot is not None),
        chain=named,
        source=f"snapshot {arguments.snapshot}" if arguments.snapshot else "a fresh snapshot",
        digest=snapshot.digest,
        captured_at=snapshot.body.metadata.captured_at,
        platform=platform_lines(snapshot.body.platform),
        load=asked.load,
    )


def _report(arguments: argparse.Namespace, outcome: Outcome) -> None:
    made = report(outcome)
    if arguments.ctrf:
        Path(arguments.ctrf).write_bytes(ctrf(made) + b"\n")
    if arguments.junit:
        Path(arguments.junit).write_bytes(junit(made))
    if arguments.evidence:
        Path(arguments.evidence).write_bytes(evidence(outcome))
    if arguments.json:
        sys.stdout.buffer.write(ctrf(made) + b"\n")
    else:
        show(outcome, Console())
