"""What turns the prompts of one model into token ids."""

from typing import Protocol

from epp.prompts.asked import ChatPrompt
from epp.prompts.encoding import Encoded
from epp.prompts.prompt import TokenSource


class WithoutTokensError(Exception):
    """A prompt gets no token ids; the text is the reason, one of a fixed few words that metrics count."""


class Model(Protocol):
    """One way to the token ids of one model."""

    source: TokenSource
    """What is counted for prompts that came this way."""

    @property
    def has_template(self) -> bool:
        """Whether chat requests get tokens."""

    @property
    def cache_rules(self) -> tuple[str, ...]:
        """Places at which texts may be cut, so that an earlier text's tokens are used again."""

    @property
    def cache_differed(self) -> bool:
        """Whether a check found other tokens, so that nothing is cut any more."""

    async def chat(self, prompt: ChatPrompt) -> Encoded:
        """The ids of a conversation. Raises WithoutTokensError."""

    async def text(self, text: str, add_special_tokens: bool) -> Encoded:
        """The ids of a text. Raises WithoutTokensError."""
