"""What a request body asks for, the same for every API; token ids come later."""

from typing import Any, TypeAlias

import msgspec

from epp.prompts.prompt import TokenIds

Body: TypeAlias = bytes | bytearray | memoryview
Part: TypeAlias = dict[str, Any]


class Message(msgspec.Struct, kw_only=True):
    """One turn of a conversation with what vLLM passes on to chat templates; it drops every other key."""

    role: str
    content: str | list[str | Part] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    name: Any = None
    task: Any = None
    tools: Any = None

    @property
    def characters(self) -> int:
        """Characters of its text."""
        content = self.content or ""
        if isinstance(content, str):
            return len(content)
        return sum(len(part if isinstance(part, str) else str(part.get("text", ""))) for part in content)


class ChatPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """Messages for a chat template."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None
    template: str | None = None
    """A template sent along with the request."""
    variables: dict[str, Any] = msgspec.field(default_factory=dict)
    """Further variables of the template."""
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    of_responses: bool = False
    """From the responses API, which builds some models' prompts in another way."""

    @property
    def characters(self) -> int:
        """Characters of the messages' texts."""
        return sum(message.characters for message in self.messages)


class TextPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """Text that is tokenised as it stands."""

    text: str
    add_special_tokens: bool = True
    stand_ins: TokenIds | None = None
    """What stands for its token ids where these cannot be had; None: its text."""


class TokensPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids that the client computed."""

    ids: list[int] | TokenIds


class StandInPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt whose token ids cannot be had here."""

    tokens: TokenIds
    """What stands for them (`approximate.py`)."""
    reason: str


AnyPrompt: TypeAlias = ChatPrompt | TextPrompt | TokensPrompt | StandInPrompt


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One body, understood."""

    model: str = ""
    prompt: AnyPrompt | None = None
    """The first of a batch; None: the prompt is not in the body."""
    further_tokens: int = 0
    """About how many tokens the others of a batch have; one worker computes them all."""
    media_items: int = 0
    """Images, sounds and videos in the first prompt."""
    stream: bool = False
    max_output_tokens: int | None = None
    expected_output_tokens: int | None = None
    cache_salt: str = ""
    session: str = ""
    """What requests of one conversation or agent have in common, as the client says."""
    priority: int = 0
    """As vLLM counts: lower is earlier."""
    adapter: str = ""
    """A LoRA adapter that the body names apart from the model (SGLang's `lora_path`)."""
