"""A run in a few numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from epp.simulate.trace.requests import BLOCK_TOKENS, TraceRequest
from epp.simulate.trace.run import Conditions, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Times in seconds."""

    policy: str
    requests: int
    ttft_mean: float
    ttft_p50: float
    ttft_p90: float
    ttft_p99: float
    ttft_bound: float
    """Mean if every hit that any cache could give were given and nobody waited: no policy can be below."""
    hit_rate: float
    """Share of the prompt tokens that was cached where the request went."""
    hit_rate_bound: float
    max_over_mean: float
    """Requests of the busiest worker over the mean."""
    regret_mean: float
    """Mean time lost against the worker that was truly the best for the request alone."""
    belief_error: float
    """Share of the prompt tokens by which expected and true hits differ."""


def summarise(policy: str, trace: Sequence[TraceRequest], run: Run, conditions: Conditions) -> Summary:
    """The numbers of `run`."""
    tokens = sum(request.input_tokens for request in trace)
    reachable = _reachable_hits(trace)
    picks = np.bincount(run.worker, minlength=conditions.workers)
    p50, p90, p99 = np.percentile(run.ttft, (50, 90, 99)).tolist()
    return Summary(
        policy=policy,
        requests=len(trace),
        ttft_mean=float(run.ttft.mean()),
        ttft_p50=p50,
        ttft_p90=p90,
        ttft_p99=p99,
        ttft_bound=(tokens - reachable) / conditions.tokens_per_second / len(trace),
        hit_rate=int(run.hit_tokens.sum()) / tokens,
        hit_rate_bound=reachable / tokens,
        max_over_mean=float(picks.max() / picks.mean()),
        regret_mean=float(run.regret.mean()),
        belief_error=int(np.abs(run.hit_tokens - run.believed_tokens).sum()) / tokens,
    )


def _reachable_hits(trace: Sequence[TraceRequest]) -> int:
    """Tokens that one cache without bound would have held."""
    seen: set[int] = set()
    hits = 0
    for request in trace:
        held = next((i for i, block in enumerate(request.blocks) if block not in seen), len(request.blocks))
        hits += min(held * BLOCK_TOKENS, request.input_tokens)
        seen.update(request.blocks)
    return hits
