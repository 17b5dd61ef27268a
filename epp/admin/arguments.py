"""The options of `epp status`, `explain` and `doctor`, apart from the commands: help needs none of their imports."""

import argparse
from pathlib import Path

STATUS_EXAMPLE = "  kubectl exec deploy/epp -- epp status\n  epp status --url http://127.0.0.1:9091 --json"
EXPLAIN_EXAMPLE = "  epp explain --last 3\n  epp explain --request-id 4711 --policy least-in-flight"
DOCTOR_EXAMPLE = "  kubectl exec deploy/epp -- epp doctor"


SHADOW_EXAMPLE = (
    "  EPP_ENDPOINTS_FILE=endpoints.yaml epp shadow     (SIGTERM or Ctrl-C ends it and prints the report)\n"
    "  epp shadow --report"
)


def add_shadow_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `epp shadow`."""
    parser.add_argument("--report", action="store_true", help="ask a running `epp shadow` what it has found so far")
    parser.add_argument("--url", default="http://127.0.0.1:9091", help="its admin port (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def add_status_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `epp status`."""
    parser.add_argument("--url", default="http://127.0.0.1:9091", help="admin port of the EPP (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the document that the EPP serves")


def add_explain_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `epp explain`."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--url", default="http://127.0.0.1:9091", help="admin port of the EPP (default: %(default)s)")
    source.add_argument("--file", type=Path, help="decisions saved by `epp explain --json`")
    parser.add_argument("--request-id", help="only the decision on this request")
    parser.add_argument("--last", type=int, default=1, help="how many decisions, newest first (default: %(default)s)")
    parser.add_argument("--policy", help="decide again with this policy, from what was known then")
    parser.add_argument("--json", action="store_true", help="print the decisions as JSON, to save them")


def add_doctor_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `epp doctor`."""
    parser.add_argument("--url", help="admin port of the EPP (default: EPP_ADMIN_PORT on this host)")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
