"""`epp status`: ask a running EPP how it is."""

import argparse
import sys
import urllib.error
import urllib.request
from http.client import HTTPException, InvalidURL

import msgspec
from rich.console import Console
from rich.table import Table

from epp.admin.status import Status, decode
from epp.endpoints.metrics import EngineStatus
from epp.endpoints.status import EndpointStatus
from epp.kvcache.causes import ADVICE
from epp.kvcache.status import RankStatus
from epp.peers.status import PeerStatus

TIMEOUT_SECONDS = 5.0


def run(arguments: argparse.Namespace) -> int:
    """Print the status; 0 when the EPP is ready, 1 when it is not, 2 for a bad URL, 3 when it cannot be asked."""
    if not arguments.url.startswith(("http://", "https://")):
        return _complain(2, f"--url {arguments.url}: expected http://HOST:PORT")
    url = arguments.url.rstrip("/") + "/status"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310 - the scheme is checked above
            document = answer.read()
        status = decode(document)
    except InvalidURL as error:
        return _complain(2, f"--url {arguments.url}: {error}")
    except urllib.error.HTTPError as error:
        error.close()
        return _complain(3, f"{url}: no status of an EPP: {error}")
    except msgspec.DecodeError as error:
        return _complain(3, f"{url}: no status of an EPP: {error}")
    except (OSError, HTTPException) as error:
        return _complain(3, f"{url}: {error}; is `epp serve` running?")
    if arguments.json:
        sys.stdout.buffer.write(document + b"\n")
    else:
        _print(status, Console())
    return 0 if status.process.ready else 1


def _complain(code: int, text: str) -> int:
    print(text, file=sys.stderr)  # noqa: T201 - a command speaks to a person
    return code


def _print(status: Status, console: Console) -> None:
    process = status.process
    state = "ready" if process.ready else "not ready"
    waiting = f", waiting for {', '.join(process.waiting_for)}" if process.waiting_for else ""
    console.print(f"epp {process.version}, up {process.uptime_seconds:.0f} s, {state}{waiting}")
    console.print(
        _sources(status), _endpoints(status), _knowledge(status), _models(status), *_peers(status), _settings(status)
    )


def _sources(status: Status) -> Table:
    table = Table("source", "last seen", "failures", "state", title="where endpoints come from")
    for source in status.discovery.sources:
        seen = "never" if source.seconds_since_seen is None else f"{source.seconds_since_seen:.1f} s ago"
        state = source.error or ("fine" if source.listed else "not listed yet")
        table.add_row(source.name, seen, str(source.failures), state)
    return table


def _endpoints(status: Status) -> Table:
    count = len(status.pool.endpoints)
    table = Table("endpoint", "address", "roles", "rank", "engine", "state", title=f"{count} endpoints")
    for endpoint in status.pool.endpoints:
        roles, state = " ".join(endpoint.roles), _state(status, endpoint)
        table.add_row(endpoint.name, endpoint.host_port, roles, str(endpoint.rank), endpoint.engine, state)
    return table


def _knowledge(status: Status) -> Table:
    ranks: dict[str, list[RankStatus]] = {}
    for rank in status.kv.ranks:
        ranks.setdefault(rank.endpoint, []).append(rank)
    table = Table("endpoint", "load", "cache", title=f"what is known; {status.load.reservations} requests in flight")
    for endpoint in status.pool.endpoints:
        engine, known = status.engine_metrics.endpoints.get(endpoint.name), ranks.get(endpoint.name, ())
        load = _load(engine) if engine else "only our own picks"
        cache = [(f"rank {rank.rank}: " if len(known) > 1 else "") + _cache(rank) for rank in known]
        cause = status.fidelity.causes.get(endpoint.name)
        if cause is not None:
            error = status.fidelity.mean_error.get(endpoint.name, 0.0)
            cache.append(f"predictions are {error:+.0f} tokens off, likely {cause}: {ADVICE[cause]}")
        table.add_row(endpoint.name, load, "\n".join(cache) or "only our own picks")
    return table


def _load(engine: EngineStatus) -> str:
    """What the engine said last of its queue, and how long ago."""
    if engine.age_seconds is None:
        return engine.error or "not read yet"
    numbers = ((engine.running, "running"), (engine.queued, "queued"))
    known = [f"{number:.0f} {what}" for number, what in numbers if number is not None]
    if engine.kv_used is not None:
        known.append(f"{engine.kv_used:.0%} of KV")
    return ", ".join(known) + f", {engine.age_seconds:.1f} s ago"


def _cache(rank: RankStatus) -> str:
    """What is known of the blocks that it holds, and how surely."""
    heard = "no event yet" if rank.idle_seconds is None else f"last event {rank.idle_seconds:.1f} s ago"
    why = f" ({rank.why})" if rank.why else ""
    return f"{rank.blocks} blocks, {rank.confidence:.0%} sure{why}, {heard}"


def _state(status: Status, endpoint: EndpointStatus) -> str:
    if endpoint.host_port in status.suspects.suspended:
        return "suspended: does not answer"
    if endpoint.name in status.ejection.failing:
        return "out: answers with errors"
    if endpoint.name in status.ejection.stalled:
        return "out: makes no progress"
    return "fine" if endpoint.weight == 1.0 else f"fine, weight {endpoint.weight:g}"


def _models(status: Status) -> Table:
    table = Table("models", "tokenizer", "state", title="where token ids come from")
    for model in status.prompts.models:
        state = model.problem or ("fine" if model.chat_template else "no chat template: chats are compared as text")
        table.add_row(" ".join(model.names) or "all", model.origin, state)
    if not status.prompts.models:
        asked = status.prompts.render_service
        table.add_row("all", "none", "engines render" if asked else "prefixes are compared as text")
    return table


def _peers(status: Status) -> list[Table]:
    peers = status.peers
    if not peers.enabled:
        return []
    state = peers.problem or "load is shared"
    table = Table("peer", "address", "version", "heard", "lag", "requests", "lost", "state", title=f"peers: {state}")
    for peer in peers.peers:
        heard = "never" if peer.seconds_since_heard is None else f"{peer.seconds_since_heard:.1f} s ago"
        lag = "" if peer.lag_seconds is None else f"{peer.lag_seconds * 1000:.1f} ms"
        version = f"{peer.epp} (v{peer.message_version})" if peer.epp else ""
        name = peer.name or "unknown"
        table.add_row(
            name, peer.address, version, heard, lag, str(peer.reservations), str(peer.lost), _peer_state(peer)
        )
    return [table]


def _peer_state(peer: PeerStatus) -> str:
    if not peer.present:
        return "silent: its load does not count here"
    if not peer.hears_us:
        return "does not hear us"
    state = "in step" if peer.in_step else "catching up"
    return f"{state}; its prompts do not count: other prefix keys" if peer.same_keys is False else state


def _settings(status: Status) -> Table:
    table = Table("setting", "value", title="settings in force")
    for name, value in status.settings.items():
        table.add_row(name, value)
    return table
