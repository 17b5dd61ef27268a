"""`make demo`: Envoy, the picker and four workers; round robin, approximate prefix and KV events side by side."""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.live import Live

from epp.simulate.demo.chain import (
    CACHE_SHARE,
    KV_POLICY,
    WORKERS,
    DemoError,
    forget_caches,
    gateway,
    model_folder,
    predictions,
    worker_arguments,
)
from epp.simulate.demo.client import Client
from epp.simulate.demo.results import Run
from epp.simulate.demo.table import results_table
from epp.simulate.demo.verdict import Finding, findings
from epp.simulate.demo.workload import Shape, agents
from epp.simulate.envoy import EnvoyError
from epp.simulate.processes import ProcessError, Worker, running_workers, write_endpoints

SEED = 20261130
RUN_SECONDS = 52.0
"""A run that takes longer has failed: three of them and the start must fit into three minutes."""

BUSY_SECONDS = 0.02


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; 0 when all of it held, 1 when something failed, 3 when it could not start."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="keep the chain running afterwards, to try it by hand")
    parser.add_argument("--guess", action="store_true", help="a fourth run: KV-aware without events")
    parser.add_argument(
        "--cache-share",
        type=float,
        default=CACHE_SHARE,
        help="of what the agents have live at once, in the cache of each worker (default: %(default).2f)",
    )
    parser.add_argument("--seed", type=int, default=SEED, help="of the load (default: %(default)s)")
    arguments = parser.parse_args(argv)
    console = Console() if sys.stdout.isatty() else Console(width=140)
    try:
        with tempfile.TemporaryDirectory(prefix="epp-demo-") as folder:
            return _demo(Path(folder), console, arguments)
    except (EnvoyError, ProcessError, DemoError) as error:
        console.print(f"the demo cannot go on: {error}", style="red", markup=False)
        return 3
    except KeyboardInterrupt:
        return 130


def _demo(folder: Path, console: Console, arguments: argparse.Namespace) -> int:
    shape = Shape()
    model = model_folder(folder)
    round_robin = Run("round-robin", "round robin")
    approximate = Run("approximate-prefix", "approximate prefix + load")
    kv = Run(KV_POLICY, "KV events, predicted TTFT", events=True)
    runs = [round_robin, approximate, kv]
    if arguments.guess:
        runs.append(Run(KV_POLICY, "caches guessed from own picks"))
    console.print(f"starting {len(WORKERS)} workers; logs in {folder}")
    with running_workers(
        dict.fromkeys(WORKERS, worker_arguments(shape, model, arguments.cache_share)), folder
    ) as workers:
        write_endpoints(workers, folder / "endpoints.json")
        with Live(console=console, refresh_per_second=2, get_renderable=lambda: results_table(runs, shape.requests)):
            for run in runs:
                _run(run, shape, workers, model, folder, arguments.seed)
        if not console.is_terminal:
            console.line()  # rich leaves the cursor behind the table there
        code = _report(findings(round_robin, approximate, kv, expected=shape.requests), console)
        _say_predictions(runs, console)
        _say_busy(runs, console)
        if arguments.keep:
            _keep(workers, model, folder, console)
    return code


def _run(run: Run, shape: Shape, workers: Sequence[Worker], model: Path, folder: Path, seed: int) -> None:
    forget_caches(workers)
    with gateway(run.policy, model, folder, events=run.events) as (picker, envoy):
        client = Client(envoy, shape, run.measured.append)
        with contextlib.suppress(TimeoutError):
            asyncio.run(asyncio.wait_for(client.run(agents(shape, seed)), RUN_SECONDS))
        run.late_seconds = float(np.percentile(client.lateness, 95)) if client.lateness else 0.0
        if run.policy == KV_POLICY:
            run.predictions = predictions(picker)


def _report(found: Sequence[Finding], console: Console) -> int:
    for finding in found:
        console.print(f"{'ok    ' if finding.held else 'FAILED'}  {finding.text}", style="" if finding.held else "red")
    return 0 if all(finding.held for finding in found) else 1


def _say_predictions(runs: Sequence[Run], console: Console) -> None:
    for run in runs:
        if run.predictions is not None:
            said = run.predictions
            console.print(
                f"note    {run.label}: {said.equal} predictions exact, {said.over} too many, {said.under} too few; "
                f"{said.predicted_tokens} cached tokens predicted, {said.reported_tokens} reported"
            )


def _say_busy(runs: Sequence[Run], console: Console) -> None:
    late = max(run.late_seconds for run in runs)
    if late > BUSY_SECONDS:
        text = (
            f"note    this machine was busy: timers fired up to {late * 1000:.0f} ms late (p95), as will have answers"
        )
        console.print(text, style="yellow")


def _keep(workers: Sequence[Worker], model: Path, folder: Path, console: Console) -> None:
    """Leave the KV-aware chain running until Ctrl-C."""
    forget_caches(workers)
    with gateway(KV_POLICY, model, folder, events=True) as (picker, envoy):
        console.print("\nThe chain keeps running; Ctrl-C ends it. Try, twice:\n", highlight=False)
        message = {"role": "user", "content": " ".join(["Say hello, and then hello again."] * 12)}
        body = json.dumps({"model": "demo", "max_tokens": 20, "messages": [message]})  # several blocks: a hit shows
        url = f"http://{envoy.address}/v1/chat/completions"
        console.print(f"  curl -i {url} -H 'content-type: application/json' -d '{body}'", soft_wrap=True, markup=False)
        console.print(f"  curl http://127.0.0.1:{picker.admin_port}/status", soft_wrap=True)
        console.print(f"  curl http://127.0.0.1:{picker.metrics_port}/metrics\n", soft_wrap=True)
        threading.Event().wait()


if __name__ == "__main__":
    sys.exit(main())
