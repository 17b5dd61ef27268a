"""Time of one decision, tokens and cached prefixes known; baseline: a loop over plain scorers, endpoint by endpoint."""

import random
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

from benchmarks.report import report
from epp.endpoints.endpoint import Endpoint
from epp.endpoints.metrics import EngineMetrics, EngineSample
from epp.endpoints.pool import Pool
from epp.kvcache.prefix_index import Match
from epp.prompts.prompt import Prompt, Request, TokenSource
from epp.scheduling.policies import policy_from
from epp.scheduling.scheduler import Scheduler
from epp.settings import Settings

ROWS = {"decision_64": 64, "decision_1000": 1000}
ROUNDS = 1500
TOKENS = 12_000


class Known:
    """An index whose answer is there already."""

    def __init__(self, endpoints: int) -> None:
        self._match = Match(np.random.default_rng(1).integers(0, TOKENS, endpoints))

    def match(self, prompt: Prompt) -> Match:  # noqa: ARG002 - the interface
        return self._match


def busy_scheduler(endpoints: int) -> tuple[Scheduler, list[Endpoint]]:
    pool, metrics = Pool(), EngineMetrics(3600.0)
    each = [Endpoint(name=f"w{i}", address=f"10.0.{i >> 8}.{i & 255}", port=8000) for i in range(endpoints)]
    pool.replace(each)
    scheduler = Scheduler(pool=pool, index=Known(endpoints), policy=policy_from(Settings()), metrics=metrics)
    for column in range(endpoints):
        sample = EngineSample(queued=float(column % 5), running=float(column % 9), kv_used=column % 100 / 100)
        metrics.note(column, sample, time.monotonic())
    for _ in range(4 * endpoints):
        scheduler.pick(request(TOKENS))
    return scheduler, each


def request(tokens: int) -> Request:
    prompt = Prompt(tokens=np.zeros(tokens, dtype=np.uint32), source=TokenSource.TOKENIZER)
    return Request(prompt=prompt, stream=True)


def decision_us(endpoints: int) -> float:
    scheduler, _ = busy_scheduler(endpoints)
    asked = request(TOKENS)

    def decide() -> None:
        scheduler.pick(asked).reservation.release()

    return _median_us(decide)


class _Plain:
    """What a plain picker keeps of one endpoint."""

    def __init__(self, i: int) -> None:
        self.cached, self.queued, self.in_flight, self.kv_used = i * 37 % TOKENS, i % 5, i % 9, i % 100 / 100


def plain_us(endpoints: int) -> float:
    pool = [_Plain(i) for i in range(endpoints)]
    draw = random.Random(1)
    scorers: list[tuple[float, Callable[[list[_Plain]], dict[int, float]]]] = [
        (3.0, lambda each: {i: one.cached / TOKENS for i, one in enumerate(each)}),
        (2.0, lambda each: _least({i: float(one.queued) for i, one in enumerate(each)})),
        (2.0, lambda each: {i: 1.0 - one.kv_used for i, one in enumerate(each)}),
        (1.0, lambda each: _least({i: float(one.in_flight) for i, one in enumerate(each)})),
    ]

    def decide() -> None:
        total = dict.fromkeys(range(endpoints), 0.0)
        for weight, score in scorers:
            for i, value in score(pool).items():
                total[i] += weight * min(max(value, 0.0), 1.0)
        order = list(total.items())
        draw.shuffle(order)
        order.sort(key=lambda item: -item[1])

    return _median_us(decide)


def _least(values: dict[int, float]) -> dict[int, float]:
    low, high = min(values.values()), max(values.values())
    return {i: 1.0 if low == high else (high - value) / (high - low) for i, value in values.items()}


def _median_us(decide: Callable[[], None]) -> float:
    times = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        decide()
        times.append(time.perf_counter() - begun)
    return median(times) * 1e6


def main(rows: Sequence[str]) -> None:
    for name in rows or ROWS:
        report(name, decision_us(ROWS[name]), "us", baseline=plain_us(ROWS[name]))


if __name__ == "__main__":
    main(sys.argv[1:])
