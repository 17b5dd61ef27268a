"""Flags of `epp serve`: those of GIE's lightweight picker, so that its manifests run this one unchanged.

Each flag stands for a setting and wins over the environment. Source: cmd/lwepp of
kubernetes-sigs/gateway-api-inference-extension, and controller-runtime's zap flags.
"""

import argparse
import sys
from collections.abc import Mapping

from epp.settings import PREFIX

_FLAGS = {
    "pool-name": ("POOL_NAME", "name of the InferencePool"),
    "pool-namespace": ("NAMESPACE", "namespace of the InferencePool"),
    "pool-group": ("POOL_GROUP", "API group of the InferencePool"),
    "grpc-port": ("GRPC_PORT", "port of the ext_proc gRPC service"),
    "grpc-health-port": ("HEALTH_PORT", "port of the gRPC health service"),
    "metrics-port": ("METRICS_PORT", "port of Prometheus metrics"),
}
_SECURE = "secure-serving"
_LEVEL = "zap-log-level"
_IGNORED = ("v", "zap-devel", "zap-encoder", "zap-stacktrace-level", "zap-time-encoding", "health-checking")
"""Accepted for the manifests' sake; logs are JSON lines whatever they say."""

_FOREIGN = "config-file"
"""Of GIE's and llm-d's larger picker: its plugins, which this one does not have."""

_ZAP_LEVELS = {"debug": "debug", "info": "info", "warn": "warning", "error": "error", "panic": "error"}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add every flag, with one dash or two, as Go programs take them."""
    for flag, (setting, meaning) in _FLAGS.items():
        parser.add_argument(f"--{flag}", f"-{flag}", metavar="VALUE", help=f"{meaning}; as {PREFIX}{setting}")
    parser.add_argument(
        f"--{_SECURE}", f"-{_SECURE}", nargs="?", const="true", metavar="BOOL", help=f"as {PREFIX}SECURE_SERVING"
    )
    parser.add_argument(f"--{_LEVEL}", f"-{_LEVEL}", metavar="LEVEL", help=f"as {PREFIX}LOG_LEVEL, in zap's words")
    for flag in (*_IGNORED, _FOREIGN):
        parser.add_argument(f"--{flag}", f"-{flag}", nargs="?", help=argparse.SUPPRESS)


def with_flags(arguments: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` with the settings that the given flags stand for."""
    given = {name.replace("_", "-"): value for name, value in vars(arguments).items() if isinstance(value, str)}
    if _FOREIGN in given:
        text = f"--{_FOREIGN}: a file of another picker's plugins, is not read; see {PREFIX}CONFIG_FILE"
        print(text, file=sys.stderr)  # noqa: T201 - the log is not configured yet
    settings = {PREFIX + setting: given[flag] for flag, (setting, _) in _FLAGS.items() if flag in given}
    if _SECURE in given:
        settings[f"{PREFIX}SECURE_SERVING"] = given[_SECURE]
    if _LEVEL in given:
        # zap's other levels are numbers, the higher the more talkative.
        settings[f"{PREFIX}LOG_LEVEL"] = _ZAP_LEVELS.get(given[_LEVEL].lower(), "debug")
    return {**environ, **settings}
