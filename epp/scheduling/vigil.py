"""Watches the workers that hold requests of ours: one that falls silent is asked for a sign of life.

A node that dies closes no connection and fails no request for as long as the gateway is patient. So a worker with our
requests that was not heard of for SILENCE_SECONDS is asked, and where it usually answers and now does not within
PATIENCE_SECONDS, it looks dead: at most SILENCE + PATIENCE + 2 x LOOK = 0.75 s after its last word, however seldom
metrics are read.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import structlog
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter

from epp.endpoints.answer_time import AnswerTime
from epp.endpoints.endpoint import Endpoint
from epp.endpoints.metrics import EngineMetrics
from epp.endpoints.pool import Pool
from epp.endpoints.pulse import Pulse
from epp.scheduling.load import Clock, Load
from epp.scheduling.outcome import Ending, Outcome
from epp.scheduling.suspicion import GATEWAY_ERRORS

_log = structlog.get_logger(__name__)

SILENCE_SECONDS = 0.3
PATIENCE_SECONDS = 0.35
"""Time to answer; a worker that usually takes long has more (`AnswerTime`)."""
LOOK_SECONDS = 0.05
_LONGEST_PAUSE = 10.0
"""Between two questions where nobody ever answers: a NetworkPolicy may let only the gateway in."""


class Vigil:
    """Tells `on_loss` of workers that hold requests and give no sign of life when asked, once until the next sign.

    Signs of life are answers, tokens, metrics and reactions to our questions. Only a worker that reacted to a question
    before can be missed, so each is asked once when it joins.
    """

    def __init__(
        self,
        pool: Pool,
        load: Load,
        metrics: EngineMetrics,
        on_loss: Callable[[Endpoint], None],
        registry: CollectorRegistry,
        *,
        per_second: float,
        clock: Clock = time.monotonic,
    ) -> None:
        self._pool = pool
        self._load = load
        self._metrics = metrics
        self._on_loss = on_loss
        self._clock = clock
        self._watched: dict[int, _Watched] = {}
        self._asked: set[int] = set()
        """Columns with an open question."""
        self._heard: NDArray[np.float64] = np.zeros(0)
        self._words: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._answers: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        """Whether the last question was answered: then silence means something."""
        self._budget = _Budget(per_second, clock())
        self._task: asyncio.Task[None] | None = None
        self._questions = Counter(
            "epp_signs_of_life",
            "Questions to silent workers that hold requests, by what came: a sign of life, silence, or no connection.",
            ["answer"],
            registry=registry,
        )
        pool.on_leave(self._leave)

    async def start(self) -> None:
        """Begin to watch."""
        self._task = asyncio.create_task(self._run(), name="vigil")

    async def stop(self) -> None:
        """Watch no longer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for watched in self._watched.values():
            watched.pulse.close()

    def ended(self, outcome: Outcome) -> None:
        """Whoever answered a request lives."""
        pick = outcome.pick
        if pick is None or outcome.status is None or outcome.ending is Ending.REFUSED:
            return
        if pick.reservation.column < len(self._heard) and outcome.status not in GATEWAY_ERRORS:
            self._heard[pick.reservation.column] = self._clock()

    def look(self) -> None:
        """Ask those that have been silent for too long, longest silence first, as far as the budget goes."""
        now, snapshot = self._clock(), self._pool.snapshot()
        columns = snapshot.columns
        heard = self._listen(columns, now)
        busy = self._load.in_flight.take(columns) > 0
        # Who never answered is asked while idle too: whether it answers at all must be known before it dies.
        silent = ((busy & (now - heard >= SILENCE_SECONDS)) | ~self._answers.take(columns)).nonzero()[0]
        self._budget.refill(now)
        for i in silent[np.argsort(heard[silent], kind="stable")].tolist():
            column = int(columns[i])
            watched = self._watched.get(column) or self._meet(column, snapshot.endpoints[i])
            if watched.may_ask(now) and self._budget.take():
                self._asked.add(column)
                watched.pulse.ask(now)

    def judge(self) -> None:
        """Tell of those whose answer is overdue."""
        now = self._clock()
        for column in list(self._asked):
            watched = self._watched[column]
            if watched.overdue(now):
                self._no_sign(column, "silence")

    def _listen(self, columns: NDArray[np.intp], now: float) -> NDArray[np.float64]:
        """When each column was last heard of."""
        missing = len(self._load.words) - len(self._heard)
        if missing > 0:
            self._heard = np.append(self._heard, np.full(missing, -np.inf))
            self._words = np.append(self._words, np.zeros(missing, dtype=np.int64))
            self._answers = np.append(self._answers, np.zeros(missing, dtype=np.bool_))
        words = self._load.words.take(columns)
        heard = np.maximum(self._heard.take(columns), self._metrics.read_at(columns))
        heard[words != self._words.take(columns)] = now
        self._words[columns] = words
        self._heard[columns] = heard
        return heard

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                self.look()
                if self._asked:
                    await asyncio.sleep(0)  # answers that are here already have their turn
                    await asyncio.sleep(0)
                    self.judge()
            except Exception:  # noqa: BLE001 - a fault of ours must not end the watch
                _log.exception("internal fault while watching silent workers")

    def _meet(self, column: int, endpoint: Endpoint) -> "_Watched":
        self._watched[column] = watched = _Watched(endpoint, partial(self._told, column))
        return watched

    def _told(self, column: int, alive: bool) -> None:
        if not alive:
            self._no_sign(column, "no connection")
            return
        self._asked.discard(column)
        self._questions.labels("sign of life").inc()
        now = self._clock()
        self._watched[column].answered(now)
        self._heard[column], self._answers[column] = now, True

    def _no_sign(self, column: int, answer: str) -> None:
        self._asked.discard(column)
        self._questions.labels(answer).inc()
        watched = self._watched[column]
        watched.missed(self._clock())
        if self._answers[column]:
            self._answers[column] = False
            self._on_loss(watched.endpoint)

    def _leave(self, column: int, _endpoint: Endpoint) -> None:
        self._asked.discard(column)
        if column < len(self._heard):
            self._heard[column], self._answers[column] = -np.inf, False
        if watched := self._watched.pop(column, None):
            watched.pulse.close()


class _Watched:
    """One worker, and how it usually answers."""

    def __init__(self, endpoint: Endpoint, told: Callable[[bool], None]) -> None:
        self.endpoint = endpoint
        self.pulse = Pulse(endpoint, told)
        self._answer_time = AnswerTime()
        self._asked_at = 0.0
        self._not_before = -np.inf
        self._pause = SILENCE_SECONDS

    def may_ask(self, now: float) -> bool:
        """Whether a question makes sense now; then it is taken to be asked."""
        if self.pulse.asked_at is not None or now < self._not_before:
            return False
        self._asked_at = now
        return True

    def overdue(self, now: float) -> bool:
        """Whether the open question should have been answered by now."""
        patience = self._answer_time.patience(PATIENCE_SECONDS)
        return self.pulse.asked_at is not None and now - self.pulse.asked_at >= patience

    def answered(self, now: float) -> None:
        """A sign of life came."""
        self._answer_time.note(now - self._asked_at)
        self._pause = SILENCE_SECONDS

    def missed(self, now: float) -> None:
        """No sign came: ask less and less often."""
        self.pulse.close()
        self._not_before = now + self._pause
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)


class _Budget:
    """So many questions a second, a tenth of a second's at once."""

    def __init__(self, per_second: float, now: float) -> None:
        self._per_second = per_second
        self._left = 0.0
        self._at = now

    def refill(self, now: float) -> None:
        most = max(2.0, self._per_second / 10)
        self._left = min(self._left + (now - self._at) * self._per_second, most)
        self._at = now

    def take(self) -> bool:
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
