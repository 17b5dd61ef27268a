"""Load that engines report in response headers (ORCA): a reading of their queue with every answer, between two scrapes.

`endpoint-load-metrics` holds `TEXT name=value, name=value` or `JSON {...}`, `endpoint-load-metrics-bin` a base64
OrcaLoadReport (github.com/cncf/xds, xds/data/orca/v3). vLLM names `kv_cache_usage_perc` and `num_requests_waiting`, and
only where the request asks for it; Triton names `kv_cache_utilization`.
"""

import base64
import binascii
import json
import math
from collections.abc import Callable, Mapping

from google.protobuf.message import DecodeError

from epp._pb.orca_pb2 import OrcaLoadReport
from epp.endpoints.metrics import EngineMetrics
from epp.scheduling.outcome import Outcome

_MOST_BYTES = 4096
_QUEUED = ("num_requests_waiting",)
_KV_USED = ("kv_cache_usage_perc", "kv_cache_utilization")


class LoadReports:
    """Takes the report out of each answer that holds one."""

    def __init__(self, metrics: EngineMetrics, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._clock = clock

    def ended(self, outcome: Outcome) -> None:
        """One answer; only that of the picked endpoint says something about it."""
        pick = outcome.pick
        if not outcome.load_report or pick is None or outcome.served not in {None, pick.decision.endpoint.host_port}:
            return
        named = read_load_report(outcome.load_report)
        queued, kv_used = _first(named, _QUEUED), _first(named, _KV_USED)
        if queued is not None or kv_used is not None:
            self._metrics.note_load(pick.reservation.column, queued=queued, kv_used=kv_used, now=self._clock())


def read_load_report(text: str) -> Mapping[str, float]:
    """The named metrics in a header's value, of whichever form; empty for what cannot be read."""
    if len(text) > _MOST_BYTES:
        return {}
    form, _, rest = text.strip().partition(" ")
    if form == "JSON" or text.startswith("{"):
        return _from_json(rest if form == "JSON" else text)
    if form == "TEXT" or "=" in text.rstrip("="):
        return _from_text(rest if form == "TEXT" else text)
    return _from_binary(rest if form == "BIN" else text)


def _from_text(text: str) -> dict[str, float]:
    found = {}
    for pair in text.split(","):
        name, _, value = pair.partition("=")
        try:
            found[name.strip().removeprefix("named_metrics.")] = float(value)
        except ValueError:
            continue
    return _finite(found)


def _from_json(text: str) -> dict[str, float]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(document, dict):
        return {}
    named = document.get("named_metrics", document)
    if not isinstance(named, dict):
        return {}
    numbers = {name: value for name, value in named.items() if isinstance(value, int | float)}
    try:
        return _finite({name: float(value) for name, value in numbers.items()})
    except OverflowError:
        return {}


def _from_binary(text: str) -> dict[str, float]:
    try:
        report = OrcaLoadReport.FromString(base64.b64decode(text + "=" * (-len(text) % 4), validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return {}
    return _finite(dict(report.named_metrics))


def _finite(named: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in named.items() if math.isfinite(value) and value >= 0.0}


def _first(named: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    return next((named[name] for name in names if name in named), None)
