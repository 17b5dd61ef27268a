"""An agent-like load: conversations that grow turn by turn under a few shared system prompts.

The shape follows published agent traces, scaled to one machine: a system prompt of some thousand tokens shared by
many conversations, then turns that each add one tool result and one short answer, with a pause while the tool runs.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

_TALK = """
error warning module package import value result index buffer stream socket handler request response status
return raise class method object field table column row query filter merge branch commit diff patch file path
folder line test case assert expected actual failed passed skipped timeout retry worker thread process queue lock
cache block page token prompt answer model layer weight shape batch step epoch loss metric trace span event log
config option flag default version release build target source binary library symbol link header body chunk frame
"""
_WORDS = _TALK.split()


@dataclass(frozen=True, slots=True)
class Turn:
    """What the client adds in one turn, after how long a pause."""

    text: str
    pause_seconds: float


@dataclass(frozen=True, slots=True)
class Conversation:
    """One agent at work."""

    id: int
    system: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How big the load is; a word comes to one token with the demo's tokenizer."""

    system_prompts: int = 3
    system_words: int = 1500
    agents: int = 16
    """Conversations that run at the same time."""
    conversations_per_agent: int = 2
    turns: int = 6
    task_words: int = 300
    result_words: int = 450
    pause_seconds: float = 1.0
    """Mean time that a tool runs."""
    answer_tokens: int = 40

    @property
    def requests(self) -> int:
        """All turns of all conversations."""
        return self.agents * self.conversations_per_agent * self.turns

    @property
    def working_set(self) -> int:
        """Tokens of all conversations that run at the same time, at their full length, and of the system prompts."""
        own = self.task_words + (self.turns - 1) * self.result_words + self.turns * self.answer_tokens
        return self.agents * own + self.system_prompts * self.system_words


def agents(shape: Shape, seed: int) -> list[list[Conversation]]:
    """For each agent the conversations that it has one after another; the same for the same seed."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    systems = [_words(chance, shape.system_words) for _ in range(shape.system_prompts)]
    ids = iter(range(shape.agents * shape.conversations_per_agent))
    return [
        [_conversation(chance, shape, next(ids), chance.choice(systems)) for _ in range(shape.conversations_per_agent)]
        for _ in range(shape.agents)
    ]


def _conversation(chance: random.Random, shape: Shape, id_: int, system: str) -> Conversation:
    def turns() -> Iterator[Turn]:
        for number in range(shape.turns):
            mean = shape.result_words if number else shape.task_words
            words = int(mean * chance.uniform(0.5, 1.5))
            yield Turn(_words(chance, words), min(chance.expovariate(1 / shape.pause_seconds), 4 * shape.pause_seconds))

    return Conversation(id_, system, tuple(turns()))


def _words(chance: random.Random, count: int) -> str:
    return " ".join(chance.choices(_WORDS, k=count))
