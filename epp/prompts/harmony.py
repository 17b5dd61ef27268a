"""gpt-oss models, whose prompts openai-harmony builds by code instead of a template.

The messages are those that vLLM makes of a chat request (entrypoints/openai/parser/harmony_utils, 0.18 and later).
The library renders the conversation with a short mark in place of each text; the texts themselves are encoded by way
of the token cache, which is exact, since the library encodes what stands between two special tokens by itself.
"""

import base64
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from openai_harmony import (
    Author,
    Conversation,
    DeveloperContent,
    HarmonyEncoding,
    HarmonyError,
    ReasoningEffort,
    RenderConversationConfig,
    Role,
    SystemContent,
    TextContent,
    ToolDescription,
    load_harmony_encoding,
)
from openai_harmony import Message as HarmonyMessage

from epp.prompts.asked import ChatPrompt, Message
from epp.prompts.cuts import AddedToken, Cutter, safe_rules
from epp.prompts.encoding import CachedEncoding, Encoded, EncodingThreads, LateError
from epp.prompts.huggingface import HuggingFaceEncoder
from epp.prompts.model import WithoutTokensError
from epp.prompts.model_files import ModelFilesError
from epp.prompts.prompt import TokenIds, TokenSource
from epp.prompts.template_model import TemplateModel

_VOCABULARY_DIRECTORY = "TIKTOKEN_ENCODINGS_BASE"
"""Where the library looks for its vocabulary; without it, it would ask the network."""
_VOCABULARY = "o200k_base.tiktoken"
_ORDINARY_TOKENS = 199_998
_MARK = "\ue000"
_EFFORTS = {"low": ReasoningEffort.LOW, "medium": ReasoningEffort.MEDIUM, "high": ReasoningEffort.HIGH}


class HarmonyEncoder:
    """The text side of the library; text never becomes a special token."""

    added_tokens: Sequence[AddedToken] = ()

    def __init__(self, encoding: HarmonyEncoding, files: HuggingFaceEncoder) -> None:
        self._encoding = encoding
        self._files = files

    @property
    def patterns(self) -> Sequence[str]:
        """The pattern that the model's own tokenizer.json has."""
        return self._files.patterns

    def encode_all(self, texts: Sequence[str]) -> list[TokenIds]:
        """The ids of each text. Raises UnicodeEncodeError for lone surrogates."""
        encode = self._encoding.encode
        return [np.array(encode(text, disallowed_special=()), dtype=np.uint32) for text in texts]

    def vocabulary(self) -> Iterable[bytes]:
        """The text of every entry."""
        return self._files.vocabulary()


class HarmonyModel:
    """Builds conversations by openai-harmony; other texts are those of any model."""

    source = TokenSource.TOKENIZER
    has_template = True

    def __init__(
        self, directory: Path, texts: TemplateModel, files: HuggingFaceEncoder, threads: EncodingThreads, date: str
    ) -> None:
        """`date`: the day that the engine shows the model; empty: today. Raises ModelFilesError."""
        self._texts = texts
        self._threads = threads
        self._date = date
        self._harmony = _load(directory, files)
        encoder = HarmonyEncoder(self._harmony, files)
        self.encoding = CachedEncoding(encoder, Cutter(safe_rules(encoder)), threads)

    @property
    def cache_rules(self) -> tuple[str, ...]:
        """Names of the rules by which texts are cut."""
        return self.encoding.rules

    @property
    def cache_differed(self) -> bool:
        """Whether a check found that cuts change the tokens."""
        return self.encoding.differed

    async def chat(self, prompt: ChatPrompt) -> Encoded:
        """Raises WithoutTokensError."""
        if prompt.template is not None or prompt.of_responses:
            raise WithoutTokensError("template_refused")
        try:
            return Encoded(await self._threads.within_budget(partial(self._ids, prompt), prompt.characters))
        except LateError as reason:
            raise WithoutTokensError(str(reason)) from None
        except UnicodeEncodeError:
            raise WithoutTokensError("not_unicode") from None
        except (HarmonyError, ValueError, TypeError, KeyError):
            raise WithoutTokensError("template_refused") from None

    async def text(self, text: str, add_special_tokens: bool) -> Encoded:
        """Raises WithoutTokensError."""
        return await self._texts.text(text, add_special_tokens)

    def _ids(self, prompt: ChatPrompt) -> TokenIds:
        texts: list[str] = []

        def mark(text: str) -> str:
            texts.append(text)
            return f"{_MARK}{len(texts) - 1}{_MARK}"

        messages = [_system(prompt, self._date)]
        if prompt.tools:
            messages.append(_developer(prompt.tools))
        messages += _conversation(prompt.messages, mark)
        config = RenderConversationConfig(auto_drop_analysis=True)
        ids = self._harmony.render_conversation_for_completion(Conversation(messages=messages), Role.ASSISTANT, config)
        return self._with_texts(np.array(ids, dtype=np.uint32), texts)

    def _with_texts(self, ids: TokenIds, texts: Sequence[str]) -> TokenIds:
        """The ids with the texts that their marks stand for."""
        edges = [-1, *np.flatnonzero(ids >= _ORDINARY_TOKENS).tolist(), len(ids)]
        parts: list[TokenIds] = []
        for before, edge in pairwise(edges):
            between = ids[before + 1 : edge]
            written = self._harmony.decode_utf8(between.tolist()) if len(between) else ""
            if written.startswith(_MARK):
                numbers = written.replace(_MARK, " ").split()
                parts += [self.encoding.encode_now(texts[int(number)]) for number in numbers]
            else:
                parts.append(between)
            parts.append(ids[edge : edge + 1])
        return np.concatenate(parts)


def _system(prompt: ChatPrompt, date: str) -> HarmonyMessage:
    """Raises KeyError for an effort that the engine refuses."""
    content = SystemContent.new().with_conversation_start_date(date or datetime.now().strftime("%Y-%m-%d"))
    effort = prompt.variables.get("reasoning_effort")
    if effort is not None:
        content = content.with_reasoning_effort(_EFFORTS[effort])
    return HarmonyMessage.from_role_and_content(Role.SYSTEM, content)


def _developer(tools: Sequence[dict[str, Any]]) -> HarmonyMessage:
    functions = [tool["function"] for tool in tools]
    described = [ToolDescription.new(f["name"], f["description"], f["parameters"]) for f in functions]
    return HarmonyMessage.from_role_and_content(Role.DEVELOPER, DeveloperContent.new().with_function_tools(described))


def _conversation(messages: Sequence[Message], mark: Callable[[str], str]) -> list[HarmonyMessage]:
    names = {call.get("id"): call["function"]["name"] for m in messages for call in m.tool_calls or ()}
    return _without_old_thoughts([turn for message in messages for turn in _turns(message, names, mark)])


def _turns(message: Message, names: dict[Any, str], mark: Callable[[str], str]) -> list[HarmonyMessage]:
    """What one message of a request becomes; texts are handed to `mark`."""
    assistant = Author(role=Role.ASSISTANT)

    def say(text: str, channel: str) -> HarmonyMessage:
        return HarmonyMessage.from_author_and_content(assistant, mark(text)).with_channel(channel)

    texts = _texts(message)
    reasoning = message.reasoning if message.reasoning is not None else message.reasoning_content
    thoughts = [say(reasoning, "analysis")] if reasoning else []
    if message.role == "tool":
        name = f"functions.{names.get(message.tool_call_id, '')}"
        turn = HarmonyMessage.from_author_and_content(Author.new(Role.TOOL, name), mark("".join(texts)))
        return [turn.with_channel("commentary").with_recipient("assistant")]
    if message.role != "assistant":
        contents = [TextContent(text=mark(text)) for text in texts]
        return [HarmonyMessage(author=Author(role=Role(message.role)), content=contents)]
    if message.tool_calls:
        said = [say("".join(texts), "commentary")] if any(texts) else []
        return [*said, *thoughts, *(_call(call, say) for call in message.tool_calls)]
    if not texts or not texts[0]:
        return thoughts
    contents = [TextContent(text=mark(text)) for text in texts]
    return [*thoughts, HarmonyMessage(author=assistant, content=contents).with_channel("final")]


def _call(call: dict[str, Any], say: Callable[[str, str], HarmonyMessage]) -> HarmonyMessage:
    function = call["function"]
    turn = say(function.get("arguments") or "", "commentary")
    return turn.with_recipient(f"functions.{function['name']}").with_content_type("json")


def _texts(message: Message) -> list[str]:
    """Raises ValueError for a part that is no text."""
    content = message.content or ""
    texts = []
    for part in [content] if isinstance(content, str) else content:
        text = part if isinstance(part, str) else part.get("text")
        if not isinstance(text, str):
            raise ValueError("a part without text")
        texts.append(text)
    return texts


def _without_old_thoughts(turns: list[HarmonyMessage]) -> list[HarmonyMessage]:
    """Thoughts of the present turn are left out once its answer is there; those before the last user's turn stay."""
    begun = max((i + 1 for i, turn in enumerate(turns) if turn.author.role is Role.USER), default=0)
    finals = [i for i in range(begun, len(turns)) if turns[i].channel == "final"]
    last = finals[-1] if finals else begun
    return [turn for i, turn in enumerate(turns) if not (begun <= i < last and turn.channel == "analysis")]


def _load(directory: Path, files: HuggingFaceEncoder) -> HarmonyEncoding:
    """Raises ModelFilesError."""
    try:
        if _VOCABULARY_DIRECTORY in os.environ:
            return load_harmony_encoding("HarmonyGptOss")
        with tempfile.TemporaryDirectory() as made:
            (Path(made) / _VOCABULARY).write_bytes(vocabulary_file(files))
            os.environ[_VOCABULARY_DIRECTORY] = made
            try:
                return load_harmony_encoding("HarmonyGptOss")
            finally:
                del os.environ[_VOCABULARY_DIRECTORY]
    except (HarmonyError, OSError) as error:
        raise ModelFilesError(directory, f"its vocabulary is not that of gpt-oss: {error}") from error


def vocabulary_file(files: HuggingFaceEncoder) -> bytes:
    """The library's vocabulary file, made from the model's tokenizer.json: the same entries in the same order."""
    ranked = sorted(entry for entry in files.entries() if entry[0] < _ORDINARY_TOKENS)
    lines = (b"%s %d\n" % (base64.b64encode(text), rank) for rank, text in ranked)
    return b"".join(lines)
