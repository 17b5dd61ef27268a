"""The options of `epp status` and `epp doctor`, apart from the commands so that help needs none of their imports."""

import argparse

STATUS_EXAMPLE = "  kubectl exec deploy/epp -- epp status\n  epp status --url http://127.0.0.1:9091 --json"
DOCTOR_EXAMPLE = "  kubectl exec deploy/epp -- epp doctor"


def add_status_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `epp status`."""
    parser.add_argument("--url", default="http://127.0.0.1:9091", help="admin port of the EPP (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the document that the EPP serves")


def add_doctor_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `epp doctor`."""
    parser.add_argument("--url", help="admin port of the EPP (default: EPP_ADMIN_PORT on this host)")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
