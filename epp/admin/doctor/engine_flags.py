"""What the command line of a vLLM worker says about its KV events and blocks; no I/O.

Flags and defaults: vLLM's `--kv-events-config` binds an endpoint with `*` or `::` and connects to any other.
"""

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from epp.admin.doctor.finding import Finding, error, warning

EVENTS_FLAG = "--kv-events-config"
GOOD_CONFIG = '{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5600"}'
DEFAULT_ENDPOINT = "tcp://*:5557"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What our settings say of the worker."""

    block_size: int
    events_port: int | None
    replay_port: int | None
    kv_events: bool
    """Whether we connect to the worker for them."""
    bind_port: int | None = None
    """Where workers connect to us instead."""


def flag_findings(where: str, command: Sequence[str], expected: Expected) -> list[Finding]:
    """What is wrong with the command line of one vLLM worker."""
    words = _words(command)
    findings: list[Finding] = []
    if expected.kv_events or expected.bind_port is not None:
        findings.extend(_events(where, words, expected))
    if "--no-enable-prefix-caching" in words:
        findings.append(error(where, "prefix caching is off", "remove --no-enable-prefix-caching"))
    if "--enable-prompt-tokens-details" not in words:
        what = "usage does not tell how many prompt tokens were cached, so predictions cannot be checked"
        findings.append(warning(where, what, "add --enable-prompt-tokens-details"))
    size = _value(words, "--block-size")
    if size is not None and size != str(expected.block_size):
        what = f"its blocks have {size} tokens, ours {expected.block_size}: no prefix would match"
        findings.append(error(where, what, f"set EPP_BLOCK_SIZE={size}, or the annotation epp.block-size"))
    return findings


def _events(where: str, words: Sequence[str], expected: Expected) -> Iterator[Finding]:
    text = _value(words, EVENTS_FLAG)
    if text is None:
        yield error(where, "it publishes no KV events", f"add {EVENTS_FLAG} '{GOOD_CONFIG}'")
        return
    try:
        config = json.loads(text)
    except ValueError:
        config = None
    if not isinstance(config, dict):
        yield error(where, f"{EVENTS_FLAG} is no JSON object: {text[:80]}", f"write {EVENTS_FLAG} '{GOOD_CONFIG}'")
        return
    if config.get("enable_kv_cache_events") is not True:
        yield error(where, "KV events are not switched on", f'set "enable_kv_cache_events": true in {EVENTS_FLAG}')
    endpoint = str(config.get("endpoint") or DEFAULT_ENDPOINT)
    if expected.bind_port is not None:
        if _binds(endpoint):
            what = (
                f"endpoint {endpoint} waits for us to connect, but EPP_KV_BIND_PORT={expected.bind_port} waits for it"
            )
            yield error(where, what, f'write "endpoint": "tcp://EPP:{expected.bind_port}", or unset EPP_KV_BIND_PORT')
        return
    yield from _socket(where, "endpoint", endpoint, expected.events_port)
    replay = config.get("replay_endpoint")
    if not replay:
        what = "it has no replay socket: an EPP that starts later does not learn what is cached already"
        yield warning(where, what, f'set "replay_endpoint": "tcp://*:5600" in {EVENTS_FLAG} and EPP_REPLAY_PORT=5600')
    else:
        yield from _socket(where, "replay_endpoint", str(replay), expected.replay_port)


def _socket(where: str, name: str, endpoint: str, port: int | None) -> Iterator[Finding]:
    given = endpoint.rpartition(":")[2]
    if not _binds(endpoint):
        what = f"{name} {endpoint} makes vLLM connect where it should bind, so nothing is ever sent"
        yield error(where, what, f'write "{name}": "tcp://*:{given}"')
    elif given.isdecimal() and given != str(port):
        setting = "EPP_EVENTS_PORT" if name == "endpoint" else "EPP_REPLAY_PORT"
        ours = "nowhere" if port is None else f"on {port}"
        yield error(where, f"{name} is on port {given}, we look for it {ours}", f"set {setting}={given}")


def _binds(endpoint: str) -> bool:
    """Whether vLLM listens there; to any other endpoint it connects."""
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))


def _words(command: Sequence[str]) -> list[str]:
    """The words of the command, also those inside `sh -c "..."`."""
    words: list[str] = []
    for part in command:
        if EVENTS_FLAG in part and not part.startswith("--"):
            try:
                words.extend(shlex.split(part))
                continue
            except ValueError:
                pass
        words.append(part)
    return words


def _value(words: Sequence[str], flag: str) -> str | None:
    for i, word in enumerate(words):
        if word == flag and i + 1 < len(words):
            return words[i + 1]
        if word.startswith(flag + "="):
            return word[len(flag) + 1 :]
    return None
