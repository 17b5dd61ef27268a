"""The command `epp doctor`."""

import argparse
import asyncio
import sys
from urllib.parse import urlsplit

import aiohttp
import msgspec
from prometheus_client import CollectorRegistry
from rich.console import Console

from epp.admin.doctor.cluster import cluster_findings
from epp.admin.doctor.engine_flags import Expected
from epp.admin.doctor.finding import Finding, Severity, error
from epp.admin.doctor.gateway import gateway_findings
from epp.admin.doctor.tokenizer import tokenizer_findings
from epp.admin.doctor.workers import opens, worker_findings
from epp.admin.status import Status, decode
from epp.endpoints.discovery import Discovery
from epp.endpoints.kubernetes.client import KubernetesClient, NoClusterError
from epp.endpoints.kubernetes.inference_pool import OLD_GROUP
from epp.endpoints.kubernetes.namespace import own_namespace
from epp.endpoints.pool import Pool
from epp.settings import Settings, SettingsError, load_settings

DISCOVERY_SECONDS = 10.0
STATUS_SECONDS = 3.0


def run(arguments: argparse.Namespace) -> int:
    """Print what is wrong and how to mend it; 0 when nothing is, 1 when something is, 2 for wrong settings."""
    try:
        settings = load_settings()
    except SettingsError as problem:
        findings = [error("settings", str(problem), "`epp settings` lists every name with what it takes")]
        _print(findings, as_json=arguments.json)
        return 2
    findings = asyncio.run(examine(settings, arguments.url or f"http://127.0.0.1:{settings.admin_port}"))
    _print(findings, as_json=arguments.json)
    return 1 if any(finding.severity is Severity.ERROR for finding in findings) else 0


async def examine(settings: Settings, url: str) -> list[Finding]:
    """All findings: settings first, then the EPP itself, the source of endpoints, the workers."""
    findings = [*await asyncio.to_thread(tokenizer_findings, settings), *await _running(settings, url)]
    client = None if settings.endpoints_file or settings.endpoints else KubernetesClient()
    pool = Pool()
    try:
        discovery = Discovery(settings, pool, CollectorRegistry(), client)
        await discovery.start()
    except SettingsError as problem:
        return [*findings, error("settings", str(problem), "`epp settings` lists every name with what it takes")]
    except NoClusterError as problem:
        return [*findings, error("Kubernetes", str(problem), "run it in the EPP's pod, or with a kubeconfig")]
    try:
        findings.extend(await _sources(discovery))
        endpoints = pool.snapshot().endpoints
        if not endpoints:
            fix = "see `kubectl get pods` with the pool's labels; only Ready pods count"
            findings.append(error("pool", "it has no ready endpoint: every request is answered 503", fix))
        dials = settings.kv_events and settings.kv_bind_port is None
        findings.extend(await worker_findings(endpoints, block_size=settings.block_size, kv_events=dials))
        if client is not None:
            findings.extend(await _cluster(settings, client, pool))
    finally:
        await discovery.stop()
    return findings


async def _cluster(settings: Settings, client: KubernetesClient, pool: Pool) -> list[Finding]:
    namespace = settings.namespace or own_namespace()
    expected = Expected(
        block_size=settings.block_size,
        events_port=settings.events_port,
        replay_port=settings.replay_port,
        kv_events=settings.kv_events and settings.kv_bind_port is None,
        bind_port=settings.kv_bind_port if settings.kv_events else None,
    )
    findings = await cluster_findings(client, namespace, pool.snapshot().endpoints, expected)
    if settings.pool_name and settings.pool_group != OLD_GROUP:
        findings.extend(await gateway_findings(client, namespace, settings.pool_name))
    return findings


async def _sources(discovery: Discovery) -> list[Finding]:
    try:
        await asyncio.wait_for(discovery.synced(), DISCOVERY_SECONDS)
    except TimeoutError:
        reasons = [source.error for source in discovery.status().sources if source.error]
        what = "still waiting for " + ", ".join(discovery.waiting_for()) + (f": {reasons[0]}" if reasons else "")
        return [error("endpoints", what, "mend what it waits for; rights are in manifests/base/rbac.yaml")]
    return []


async def _running(settings: Settings, url: str) -> list[Finding]:
    """Whether the EPP answers, what it says of itself, and whether gateways find it listening."""
    timeout = aiohttp.ClientTimeout(total=STATUS_SECONDS)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(f"{url}/status") as answer:
            status = decode(await answer.read())
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError, msgspec.DecodeError) as problem:
        fix = "run the doctor where `epp serve` runs, or give --url"
        return [error("epp serve", f"{url} does not answer: {str(problem) or type(problem).__name__}", fix)]
    host = urlsplit(url).hostname or "127.0.0.1"
    port = int(status.settings.get("EPP_GRPC_PORT") or settings.grpc_port)
    findings = _said(status)
    if port and not await opens(host, port):
        what = f"{host}:{port} does not accept connections, so no gateway reaches it"
        findings.append(error("epp serve", what, "see EPP_HOST and EPP_GRPC_PORT, and the log of `epp serve`"))
    return findings


def _said(status: Status) -> list[Finding]:
    findings = []
    if not status.process.ready:
        waiting = ", ".join(status.process.waiting_for)
        findings.append(error("epp serve", f"not ready, waiting for {waiting}", "mend what it waits for"))
    for place in status.suspects.suspended:
        what = f"{place} does not answer and is avoided"
        findings.append(error("epp serve", what, "see the worker's log; it returns when it accepts connections"))
    return findings


def _print(findings: list[Finding], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.buffer.write(msgspec.json.encode(findings) + b"\n")
        return
    console = Console(highlight=False)
    for finding in findings:
        console.print(f"[bold]{finding.severity}[/]  {_plain(finding.where)}: {_plain(finding.what)}")
        console.print(f"       {_plain(finding.fix)}")
    worst = sum(finding.severity is Severity.ERROR for finding in findings)
    console.print(f"{worst} errors, {len(findings) - worst} other findings" if findings else "nothing is wrong")


def _plain(text: str) -> str:
    """Text that may hold brackets, as rich should print it."""
    return text.replace("[", r"\[")
