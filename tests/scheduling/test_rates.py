"""Prefill rates are learnt from what was seen, endpoint by endpoint, and survive outliers."""

import random

import numpy as np
import pytest

from epp.scheduling.load import Prefill
from epp.scheduling.rates import Rates
from tests.scheduling.worlds import endpoint


def rates(endpoints: int = 4) -> Rates:
    made = Rates()
    for i in range(endpoints):
        made.join(i, endpoint(i))
    return made


def truth(tokens: int, context: int, *, rate: float = 8000.0, quadratic: float = 0.0) -> float:
    return 0.01 + tokens / rate + quadratic * tokens * (context - tokens / 2)


def predicted(made: Rates, column: int, tokens: int, context: int) -> float:
    return float(made.seconds(np.array([column]), np.array([tokens]), context)[0])


def show(made: Rates, draw: random.Random, count: int, *, slow: dict[int, float], quadratic: float = 0.0) -> None:
    for _ in range(count):
        column = draw.randrange(4)
        context = round(draw.lognormvariate(8.5, 1.0))
        tokens = max(1, round(context * draw.random()))
        seconds = truth(tokens, context, quadratic=quadratic) * slow.get(column, 1.0) * draw.lognormvariate(0, 0.1)
        made.observe(Prefill(column=column, prefill_tokens=tokens, context_tokens=context, seconds=seconds))


def test_before_any_data_more_work_takes_longer():
    made = rates()
    assert 0.0 < predicted(made, 0, 10, 1000) < predicted(made, 0, 1000, 1000) < predicted(made, 0, 5000, 5000)


@pytest.mark.parametrize("quadratic", [0.0, 2e-9])
def test_the_curve_and_the_speed_of_each_endpoint_are_learnt(quadratic):
    made = rates()
    show(made, random.Random(3), 600, slow={3: 3.0}, quadratic=quadratic)
    for tokens, context in ((2000, 4000), (20_000, 20_000), (5000, 30_000)):
        expected = truth(tokens, context, quadratic=quadratic)
        assert predicted(made, 0, tokens, context) == pytest.approx(expected, rel=0.2)
        assert predicted(made, 3, tokens, context) == pytest.approx(3 * expected, rel=0.25)


@pytest.mark.parametrize("factor", [0.1, 12.0])
def test_hardware_far_from_the_first_guess_is_learnt_at_once_and_blamed_on_nobody(factor):
    made = rates(8)
    show(made, random.Random(7), 48, slow=dict.fromkeys(range(4), factor))
    seen = [predicted(made, column, 5000, 5000) for column in range(4)]
    unseen = [predicted(made, column, 5000, 5000) for column in range(4, 8)]
    assert seen == pytest.approx([factor * truth(5000, 5000)] * 4, rel=0.3)
    assert unseen == pytest.approx([float(np.mean(seen))] * 4, rel=0.2)


def test_outliers_move_little():
    made, draw = rates(), random.Random(4)
    show(made, draw, 400, slow={})
    before = predicted(made, 0, 5000, 5000)
    for _ in range(3):
        made.observe(Prefill(column=0, prefill_tokens=5000, context_tokens=5000, seconds=60.0))
    show(made, draw, 1, slow={})
    assert predicted(made, 0, 5000, 5000) < 1.3 * before


def test_a_new_endpoint_starts_as_an_average_one():
    made = rates()
    show(made, random.Random(5), 300, slow={0: 4.0})
    made.join(0, endpoint(0, uid="replaced by a faster one"))
    assert predicted(made, 0, 5000, 5000) == pytest.approx(
        np.mean([predicted(made, i, 5000, 5000) for i in (1, 2, 3)]), rel=0.6
    )


def test_prefills_that_end_in_the_same_step_count_as_one():
    made, draw = rates(), random.Random(6)
    for _ in range(300):
        column, batch = draw.randrange(4), draw.randrange(1, 5)
        made.observe(Prefill(column=column, prefill_tokens=1000, context_tokens=1000, seconds=batch * 0.135))
        for _ in range(batch - 1):
            made.observe(Prefill(column=column, prefill_tokens=1000, context_tokens=1000, seconds=0.001))
    assert predicted(made, 0, 1000, 1000) == pytest.approx(0.135, rel=0.25)
