"""The demo's load and its judgement."""

import pytest

from epp.simulate.demo.client import Measured
from epp.simulate.demo.results import Predictions, Run, median_ratio
from epp.simulate.demo.verdict import findings
from epp.simulate.demo.workload import Shape, agents

SMALL = Shape(agents=3, conversations_per_agent=2, turns=4, system_words=50)


def test_the_same_seed_gives_the_same_load_and_another_seed_another() -> None:
    assert agents(SMALL, 1) == agents(SMALL, 1)
    assert agents(SMALL, 1) != agents(SMALL, 2)


def test_conversations_share_system_prompts_and_nothing_else() -> None:
    conversations = [conversation for agent in agents(SMALL, 1) for conversation in agent]
    assert sum(len(conversation.turns) for conversation in conversations) == SMALL.requests
    assert len({conversation.system for conversation in conversations}) <= SMALL.system_prompts
    texts = [turn.text for conversation in conversations for turn in conversation.turns]
    assert len(set(texts)) == len(texts)


def run(label: str, seconds: float, *, cached: int, right: int = 0, errors: int = 0) -> Run:
    """100 requests whose times lie around `seconds`."""
    result = Run(label, label, predictions=Predictions(right, 100 - right, 0))
    for i in range(100):
        time = seconds * (1 + (i % 5) / 10)
        error = "no" if i < errors else ""
        result.measured.append(
            Measured(
                conversation=i // 5,
                turn=i % 5,
                error=error,
                seconds_to_first_token=time,
                prompt_tokens=100,
                cached_tokens=cached,
            )
        )
    return result


def test_a_ratio_lies_inside_its_interval() -> None:
    ratio = median_ratio(run("a", 1.0, cached=0), run("b", 2.0, cached=0))
    assert ratio.low <= ratio.value <= ratio.high
    assert ratio.value == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("seconds", "cached", "right", "errors", "held"),
    [
        (0.5, 90, 99, 0, True),
        (0.7, 90, 99, 0, False),
        (0.5, 50, 99, 0, False),
        (0.5, 90, 94, 0, False),
        (0.5, 90, 99, 1, False),
    ],
    ids=["good", "too slow", "too few hits", "wrong predictions", "an error"],
)
def test_the_demo_holds_only_when_all_of_it_does(
    seconds: float, cached: int, right: int, errors: int, held: bool
) -> None:
    round_robin, approximate = run("round robin", 1.0, cached=50), run("approximate", 0.8, cached=60)
    kv = run("kv", seconds, cached=cached, right=right, errors=errors)
    found = findings(round_robin, approximate, kv, expected=100)
    assert all(finding.held for finding in found) == held
