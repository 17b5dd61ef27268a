"""`epp validate --aicr`: the contract of an AICR check image.

Reads the snapshot and recipe that AICR mounts; exit 0 passed, 1 failed, 2 skipped, anything else is `other` to AICR;
evidence on stdout, logs on stderr, the message on the termination log.
"""

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from epp.readiness.aicr.recipe import Recipe, RecipeError, read_recipe
from epp.readiness.judge import FRONTEND, Exit
from epp.readiness.report.outcome import Outcome
from epp.readiness.rule import Result, Verdict

SNAPSHOT = "/data/snapshot/snapshot.yaml"
RECIPE = "/data/recipe/recipe.yaml"
TERMINATION_LOG = "/dev/termination-log"
MOST_MESSAGE = 4096
"""Bytes of the termination log."""
MOST_LINES = 1000
MOST_COLUMNS = 512
PASSED, FAILED, SKIPPED, OTHER = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class Mounted:
    """What AICR gives a check."""

    recipe: Recipe | None
    """None: none is mounted."""
    snapshot: str | None
    """Path of AICR's snapshot, which holds no Gateway objects; only told in the evidence."""
    run_id: str
    check: str
    """Name and phase by which AICR's catalogue calls the check."""


def mounted(environ: Mapping[str, str] = os.environ) -> Mounted:
    """By AICR's variables, else at its usual paths. Raises RecipeError when the recipe cannot be read."""
    recipe = environ.get("AICR_RECIPE_PATH", RECIPE)
    if not Path(recipe).exists() and "AICR_RECIPE_PATH" in environ:
        raise RecipeError(f"recipe {recipe}: AICR_RECIPE_PATH names no file")
    snapshot = environ.get("AICR_SNAPSHOT_PATH", SNAPSHOT)
    return Mounted(
        recipe=read_recipe(recipe) if Path(recipe).exists() else None,
        snapshot=snapshot if Path(snapshot).exists() else None,
        run_id=environ.get("AICR_RUN_ID", ""),
        check="/".join(environ.get(f"AICR_VALIDATOR_{part}", "-") for part in ("PHASE", "NAME")),
    )


def code(results: Sequence[Result], verdict: Exit) -> int:
    """AICR's exit code: skipped only where nothing of the chain applies, never where something could not be read."""
    if verdict is Exit.READY:
        return PASSED
    if verdict is Exit.NOT_READY:
        return FAILED
    frontend = any(result.reason == FRONTEND for result in results)
    unread = any(result.verdict is Verdict.OTHER and not result.rule.advisory for result in results)
    return SKIPPED if frontend and not unread else OTHER


def lines(outcome: Outcome, given: Mounted) -> list[str]:
    """The evidence, within AICR's bounds."""
    head = [
        outcome.headline,
        f"chain: {outcome.chain}",
        f"digest: {outcome.digest}, captured {outcome.captured_at}",
        f"AICR run: {given.run_id or '-'}, check: {given.check}, snapshot: {given.snapshot or 'none mounted'}",
    ]
    if given.recipe is not None and given.recipe.checks:
        head.append(f"the recipe's own checks, judged by AICR: {', '.join(given.recipe.checks)}")
    body = [
        f"{result.rule.number:>2} {result.verdict:<7} {result.rule.name}: {result.text or result.rule.rule}"
        for result in outcome.by_number
    ]
    printable = (
        "".join(char if char.isprintable() else " " for char in line) for line in (*head, *outcome.platform, *body)
    )
    return [line[:MOST_COLUMNS] for line in printable][:MOST_LINES]


def leave_message(text: str) -> None:
    """Write the message where Kubernetes looks for it; outside of a pod there is no such file."""
    with contextlib.suppress(OSError):
        if Path(TERMINATION_LOG).exists():
            Path(TERMINATION_LOG).write_bytes(_within(text))


def _within(text: str) -> bytes:
    """UTF-8 of the text, cut between two characters."""
    return text.encode()[:MOST_MESSAGE].decode(errors="ignore").encode()
