"""The options of `epp snapshot` and `epp validate`, apart from the commands: help needs none of their imports."""

import argparse

SNAPSHOT_EXAMPLE = """\
  epp snapshot --namespace llm -o snapshot.yaml
  epp snapshot --namespace llm --format json | jq .body.sections.pods.state
  epp snapshot --namespace llm -o cm://llm/readiness-snapshot"""


def add_snapshot_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `epp snapshot`."""
    add_cluster_arguments(parser)
    output = parser.add_argument_group("output")
    output.add_argument(
        "-o", "--output", metavar="PLACE", default="-", help="file, cm://namespace/name, or - for stdout (default)"
    )
    output.add_argument("--format", choices=("yaml", "json"), default="yaml", help="default: %(default)s")
    output.add_argument("--schema", action="store_true", help="print the JSON Schema of snapshots, and nothing else")


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """Which cluster, and where in it."""
    cluster = parser.add_argument_group("cluster (read with no more than get and list)")
    cluster.add_argument("--kubeconfig", metavar="FILE", help="default: the pod's service account, else ~/.kube/config")
    cluster.add_argument(
        "-n",
        "--namespace",
        metavar="NAME",
        action="append",
        default=[],
        help="namespace of the pool; repeat for more (default: the pod's own, else default)",
    )
    cluster.add_argument(
        "--epp-status", metavar="URL", help="admin port of the EPP, as http://127.0.0.1:9091, to record what it knows"
    )


VALIDATE_EXAMPLE = """\
  epp validate --namespace llm
  epp validate --offline -s snapshot.yaml --junit readiness.xml
  epp validate --namespace llm --probe --traffic --url http://203.0.113.7 --model llama --evidence readiness.md"""
VALIDATE_CODES = """exit codes:
  0  ready; offline: no fault found
  1  not ready: the first broken link is named
  2  bad input
  3  could not decide: something needed could not be read, or no check of the chain applied
  (with --aicr: 0 passed, 1 failed, 2 skipped, as AICR's contract for check images says)"""


def add_validate_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `epp validate`."""
    source = parser.add_argument_group("what is judged")
    source.add_argument(
        "-s", "--snapshot", metavar="PLACE", help="a recorded snapshot: file, cm://namespace/name, or -"
    )
    source.add_argument("--offline", action="store_true", help="ask nobody; needs --snapshot")
    source.add_argument("--pool", metavar="NAMESPACE/NAME", help="the InferencePool (default: found by the routes)")
    source.add_argument("--gateway", metavar="NAMESPACE/NAME", help="the Gateway (default: found by the routes)")
    source.add_argument("--list", action="store_true", help="list the checks, and nothing else")
    source.add_argument(
        "--aicr", action="store_true", help="run as an AICR check image: its paths, variables and codes"
    )
    add_cluster_arguments(parser)
    _add_policy(parser)
    _add_live(parser)
    output = parser.add_argument_group("results (a table on stdout, unless)")
    output.add_argument("--json", action="store_true", help="print the CTRF report instead")
    output.add_argument("--ctrf", metavar="FILE", help="write the CTRF report")
    output.add_argument("--junit", metavar="FILE", help="write a JUnit report")
    output.add_argument("--evidence", metavar="FILE", help="write the results as Markdown")


def _add_policy(parser: argparse.ArgumentParser) -> None:
    policy = parser.add_argument_group("what is demanded")
    policy.add_argument("--failure-mode", choices=("FailClose", "FailOpen"), help="of the pool (default: either)")
    policy.add_argument("--path", action="append", default=[], help="path that must reach the pool; may be repeated")
    policy.add_argument(
        "--min-timeout", metavar="SECONDS", type=float, default=60.0, help="least request timeout (default: 60)"
    )
    policy.add_argument("--min-ready", metavar="N", type=int, default=1, help="least ready workers (default: 1)")
    policy.add_argument("--no-address", action="store_true", help="a Gateway without an address is fine")
    policy.add_argument("--scoped", action="store_true", help="a load balancer open to any source fails")
    policy.add_argument(
        "--constraint",
        metavar="'NAME VALUE'",
        action="append",
        default=[],
        help="in AICR's syntax, as 'K8s.server.version >= 1.34'; may be repeated",
    )
    policy.add_argument("--recipe", metavar="FILE", help="AICR recipe whose constraints and pins are judged too")
    policy.add_argument("--max-age", metavar="HOURS", type=float, default=24.0, help="of a snapshot (default: 24)")


def _add_live(parser: argparse.ArgumentParser) -> None:
    live = parser.add_argument_group("asking (never implied by each other)")
    live.add_argument("--probe", action="store_true", help="ask the EPP over gRPC, and workers for their models")
    live.add_argument("--traffic", action="store_true", help="send requests through the Gateway, and prove who served")
    live.add_argument("--perf", metavar="SECONDS", type=float, default=0.0, help="then a load, at most 60 s")
    live.add_argument("--epp", metavar="HOST:PORT", help="the EPP's ext_proc port (default: its pods')")
    live.add_argument("--health", metavar="HOST:PORT", help="its gRPC health port (default: its pods', else 9003)")
    live.add_argument("--epp-metrics", metavar="URL", help="its metrics, as http://127.0.0.1:9090 (default: its pods')")
    live.add_argument("--url", help="the Gateway, as http://203.0.113.7 (default: its address and HTTP listener)")
    live.add_argument("--host", help="hostname of requests (default: the route's)")
    live.add_argument("--model", help="model that workers must list and requests name")
    live.add_argument("--api-key-env", metavar="NAME", help="variable with the key that requests carry")
    live.add_argument("--requests", metavar="N", type=int, default=20, help="requests of check 52 (default: 20)")
    live.add_argument("--wait", metavar="SECONDS", type=float, default=60.0, help="for the chain to answer (60)")
    live.add_argument(
        "--kill-command",
        metavar="COMMAND",
        help="destructive: kills worker {pod} of {namespace}, as 'kubectl delete pod {pod} -n {namespace} --now'",
    )
    scale = "kubectl scale deployment epp -n {namespace} --replicas"
    live.add_argument(
        "--stop-epp-command", metavar="COMMAND", help=f"destructive: stops the EPP, as '{scale} 0'; with the next"
    )
    live.add_argument("--start-epp-command", metavar="COMMAND", help=f"starts it again, as '{scale} 2'; always run")
