"""What a request asks to be computed."""

from enum import StrEnum
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray


class Api(StrEnum):
    """The API that a request speaks; UNKNOWN is routed by load alone."""

    __hash__ = str.__hash__  # that of Enum is written in Python, and every request is counted

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    GENERATE = "generate"
    UNKNOWN = "unknown"


class TokenSource(StrEnum):
    """Where a prompt's token ids came from; counted, so that a fallback never goes unseen."""

    __hash__ = str.__hash__  # as for Api

    TOKENIZER = "tokenizer"
    REQUEST = "request"
    RENDER = "render"
    TEXT = "text"
    """No ids: four bytes of text stand for a token, in a namespace of their own."""
    NONE = "none"


TokenIds: TypeAlias = NDArray[np.uint32]

EMPTY_TOKENS: TokenIds = np.empty(0, dtype=np.uint32)


class Media(msgspec.Struct, frozen=True):
    """One image, sound or video in a prompt."""

    id: str
    """The engine's own identifier of the content."""
    offset: int
    """Token position at which its placeholder tokens begin."""


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids as the engine will see them, and what else makes equal tokens mean different KV blocks.

    `tokens` is a contiguous uint32 buffer, empty when the tokens are not known. `namespace` is made by
    `epp.prompts.namespace`; the empty string is the base model, unsalted.
    """

    tokens: NDArray[np.uint32] = msgspec.field(default_factory=lambda: EMPTY_TOKENS)
    namespace: str = ""
    media: tuple[Media, ...] = ()
    source: TokenSource = TokenSource.NONE
    unseen_tokens: int = 0
    """About how many more tokens the worker will compute: behind `tokens`, or in further prompts of a batch."""

    @property
    def has_ids(self) -> bool:
        """Whether `tokens` are real ids, which may be found in a worker's cache."""
        return len(self.tokens) > 0 and self.source is not TokenSource.TEXT


NO_PROMPT = Prompt()
"""Of a request that could not be understood."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One understood request; the defaults are what holds for a request that could not be understood."""

    id: str = ""
    api: Api = Api.UNKNOWN
    model: str = ""
    """As the client named it."""
    rewritten: str = ""
    """The model that serves it in place of `model`, where a rule says so."""
    prompt: Prompt = NO_PROMPT
    media_items: int = 0
    """Images, sounds and videos in the prompt."""
    stream: bool = False
    max_output_tokens: int | None = None
    expected_output_tokens: int | None = None
    session: str = ""
    """What requests of one conversation or agent have in common, as the client says."""
    priority: int = 0
    """As vLLM counts: lower is earlier."""
    problem: str = ""
    """What is wrong with the body and where, if something is and the body was whole; the engine would refuse it too."""
    size: int = 0
    """Body bytes seen: a hint of the work when the tokens are not known."""

    @property
    def served_model(self) -> str:
        """The model that the worker gets to see; empty when none is named."""
        return self.rewritten or self.model
