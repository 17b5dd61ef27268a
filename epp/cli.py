"""The commands; nothing else."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import TypeAlias

from epp import __version__
from epp.serve_flags import add_flags, with_flags
from epp.settings import SettingsError

EXIT_CODES = """exit codes:
  0  fine
  1  the answer is no
  2  bad input
  3  could not start, or could not decide"""

Run = Callable[[argparse.Namespace], int]
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        arguments = _parser().parse_args(argv)
    except SystemExit as end:
        if end.code and "--aicr" in (sys.argv if argv is None else argv):
            return _bad_options_for_aicr()
        raise
    run: Run = arguments.run
    try:
        return run(arguments)
    except SettingsError as error:
        print(f"epp: {error}", file=sys.stderr)  # noqa: T201 - a command speaks to a person
        return 2
    except KeyboardInterrupt:
        return 130


def _bad_options_for_aicr() -> int:
    """AICR takes exit code 2 for a check that was skipped, so that a misspelt option would never be noticed."""
    from epp.readiness.aicr import contract

    contract.leave_message("the check's own options are wrong: see its log")
    return contract.OTHER


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="epp",
        description="Endpoint Picker for the Kubernetes Gateway API Inference Extension.",
        epilog=f"start here: epp serve --help; all settings: epp settings\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"epp {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_serve(commands)
    _add_shadow(commands)
    _add_settings(commands)
    _add_simulate(commands)
    _add_conformance(commands)
    _add_status(commands)
    _add_explain(commands)
    _add_doctor(commands)
    _add_tokens(commands)
    _add_snapshot(commands)
    _add_validate(commands)
    return parser


def command(commands: Commands, name: str, help_: str, example: str) -> argparse.ArgumentParser:
    """A sub-command whose help shows an example and the exit codes."""
    return commands.add_parser(
        name,
        help=help_,
        description=help_[0].upper() + help_[1:] + ".",
        epilog=f"example:\n{example}\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _add_serve(commands: Commands) -> None:
    example = (
        "  EPP_ENDPOINTS_FILE=endpoints.yaml EPP_TOKENIZER_PATH=/models/llama epp serve\n"
        "  (SIGTERM drains: not ready, let running streams finish, exit 0)"
    )
    parser = command(commands, "serve", "answer the Gateway's ext_proc calls; configured by EPP_* variables", example)
    add_flags(parser)
    parser.set_defaults(run=_serve)


def _serve(arguments: argparse.Namespace) -> int:
    from epp.app import serve
    from epp.processes.count import processes_of
    from epp.settings import load_settings

    settings = load_settings(with_flags(arguments, os.environ))
    count = processes_of(settings.processes)
    if count == 1:
        return serve(settings)
    from epp.processes.supervisor import supervise

    return supervise(settings, count)


def _add_shadow(commands: Commands) -> None:
    from epp.admin import arguments as admin

    help_ = "listen beside somebody else's picker and tell what this one would have been worth; same settings as serve"
    parser = command(commands, "shadow", help_, admin.SHADOW_EXAMPLE)
    admin.add_shadow_arguments(parser)
    parser.set_defaults(run=_shadow)


def _shadow(arguments: argparse.Namespace) -> int:
    if arguments.report:
        from epp.admin.shadow_command import report

        return report(arguments)
    from epp.app import shadow
    from epp.settings import load_settings

    return shadow(load_settings(), as_json=arguments.json)


def _add_settings(commands: Commands) -> None:
    parser = command(commands, "settings", "list every setting with its meaning and default", "  epp settings --json")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="as JSON")
    form.add_argument("--markdown", action="store_true", help="as docs/settings.md")
    parser.set_defaults(run=_settings)


def _settings(arguments: argparse.Namespace) -> int:
    from epp.settings_table import as_json, as_markdown, as_table

    form = as_json if arguments.json else as_markdown if arguments.markdown else as_table
    print(form(), end="")  # noqa: T201
    return 0


def _add_simulate(commands: Commands) -> None:
    from epp.simulate.engine import arguments as engine
    from epp.simulate.trace import arguments as traces

    parser = commands.add_parser("simulate", help="simulated workers and workloads, to try things without GPUs")
    kinds = parser.add_subparsers(metavar="KIND", required=True)
    simulated = command(kinds, "engine", "an OpenAI-compatible worker with a block cache and KV events", engine.EXAMPLE)
    engine.add_arguments(simulated)
    simulated.set_defaults(run=_simulate_engine)
    traced = command(kinds, "trace", "what a policy makes of a recorded workload", traces.TRACE_EXAMPLE)
    traces.add_trace_arguments(traced)
    traced.set_defaults(run=_simulate_trace)
    compared = command(kinds, "compare", "several policies on a recorded workload", traces.COMPARE_EXAMPLE)
    traces.add_compare_arguments(compared)
    compared.set_defaults(run=_simulate_compare)


def _simulate_engine(arguments: argparse.Namespace) -> int:
    from epp.simulate.engine.command import run

    return run(arguments)


def _simulate_trace(arguments: argparse.Namespace) -> int:
    from epp.simulate.trace.command import trace

    return trace(arguments)


def _simulate_compare(arguments: argparse.Namespace) -> int:
    from epp.simulate.trace.command import compare

    return compare(arguments)


def _add_conformance(commands: Commands) -> None:
    from epp.conformance import arguments as conformance

    parser = command(commands, "conformance", "check any endpoint picker over the wire", conformance.EXAMPLE)
    conformance.add_arguments(parser)
    parser.set_defaults(run=_conformance)


def _conformance(arguments: argparse.Namespace) -> int:
    from epp.conformance.command import run

    return run(arguments)


def _add_explain(commands: Commands) -> None:
    from epp.admin import arguments as admin

    parser = command(commands, "explain", "why requests went where they went", admin.EXPLAIN_EXAMPLE)
    admin.add_explain_arguments(parser)
    parser.set_defaults(run=_explain)


def _explain(arguments: argparse.Namespace) -> int:
    from epp.admin.explain_command import run

    return run(arguments)


def _add_status(commands: Commands) -> None:
    from epp.admin import arguments as admin

    parser = command(commands, "status", "how a running EPP is, and what it knows", admin.STATUS_EXAMPLE)
    admin.add_status_arguments(parser)
    parser.set_defaults(run=_status)


def _status(arguments: argparse.Namespace) -> int:
    from epp.admin.command import run

    return run(arguments)


def _add_doctor(commands: Commands) -> None:
    from epp.admin import arguments as admin

    parser = command(commands, "doctor", "what is wrong with a set-up, and how to mend it", admin.DOCTOR_EXAMPLE)
    admin.add_doctor_arguments(parser)
    parser.set_defaults(run=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    from epp.admin.doctor.command import run
    from epp.telemetry.logs import configure_logs

    configure_logs("error")  # on standard error: what matters of it is among the findings
    return run(arguments)


def _add_tokens(commands: Commands) -> None:
    from epp.prompts import arguments as tokens

    help_ = "what the EPP makes of a request: text, token ids, blocks; and whether an engine makes the same"
    parser = command(commands, "tokens", help_, tokens.EXAMPLE)
    tokens.add_arguments(parser)
    parser.set_defaults(run=_tokens)


def _tokens(arguments: argparse.Namespace) -> int:
    from epp.prompts.command import run
    from epp.settings import load_settings

    return run(arguments, load_settings())


def _add_snapshot(commands: Commands) -> None:
    from epp.readiness import arguments as readiness

    help_ = "record what the readiness checks read of a cluster, without secrets"
    parser = command(commands, "snapshot", help_, readiness.SNAPSHOT_EXAMPLE)
    readiness.add_snapshot_arguments(parser)
    parser.set_defaults(run=_snapshot)


def _snapshot(arguments: argparse.Namespace) -> int:
    from epp.readiness.snapshot.command import run

    return run(arguments)


def _add_validate(commands: Commands) -> None:
    from epp.readiness import arguments as readiness

    help_ = "is the chain from Gateway to worker whole? names the first broken link"
    parser = command(commands, "validate", help_, readiness.VALIDATE_EXAMPLE)
    parser.epilog = f"example:\n{readiness.VALIDATE_EXAMPLE}\n\n{readiness.VALIDATE_CODES}"
    readiness.add_validate_arguments(parser)
    parser.set_defaults(run=_validate)


def _validate(arguments: argparse.Namespace) -> int:
    from epp.readiness.command import run

    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
