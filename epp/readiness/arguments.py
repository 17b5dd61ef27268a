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
