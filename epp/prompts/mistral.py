"""Mistral models, whose prompts mistral-common builds by code instead of a template."""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from mistral_common.exceptions import MistralCommonException
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.validator import ValidationMode
from mistral_common.tokens.tokenizers.base import Tokenizer
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

from epp.prompts.asked import ChatPrompt, Message
from epp.prompts.conversation import TemplateMessage, UnknownPartError, conversation
from epp.prompts.cuts import AddedToken, Cutter, safe_rules
from epp.prompts.encoding import CachedEncoding, Encoded, EncodingThreads, LateError
from epp.prompts.model import WithoutTokensError
from epp.prompts.model_files import ModelFilesError
from epp.prompts.prompt import TokenIds, TokenSource

_FILES = ("tekken.json", "tekken*.json", "tokenizer.model.v*", "*.model.v*", "tokenizer.model")
_CALL_ID_CHARACTERS = 9


def find_mistral_file(directory: Path) -> Path | None:
    """The tokenizer file that mistral-common reads, or None where the directory has none."""
    return next((path for pattern in _FILES for path in sorted(directory.glob(pattern))), None)


class MistralEncoder:
    """The text side of mistral-common's tokenizers; text never becomes a special token."""

    added_tokens: Sequence[AddedToken] = ()

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.before = np.array([tokenizer.bos_id], dtype=np.uint32)

    @property
    def patterns(self) -> Sequence[str]:
        """Tekken's pattern; SentencePiece has none."""
        return [self._tokenizer._model._pat_str] if isinstance(self._tokenizer, Tekkenizer) else []

    def encode_all(self, texts: Sequence[str]) -> list[TokenIds]:
        """The ids of each text. Raises UnicodeEncodeError for lone surrogates."""
        "".join(texts).encode()  # raises where the library would put other characters in
        encode = self._tokenizer.encode
        return [np.array(encode(text, bos=False, eos=False), dtype=np.uint32) for text in texts]

    def vocabulary(self) -> Iterable[bytes]:
        """The text of every entry."""
        tokenizer = self._tokenizer
        if isinstance(tokenizer, Tekkenizer):
            ordinary = range(tokenizer.num_special_tokens, tokenizer.n_words)
            return (tokenizer.id_to_byte_piece(i) for i in ordinary)
        return (piece.replace("▁", " ").encode() for piece in tokenizer.vocab())


class MistralModel:
    """Encodes conversations by mistral-common, and its long texts by way of the token cache."""

    source = TokenSource.TOKENIZER
    has_template = True

    def __init__(self, file: Path, threads: EncodingThreads) -> None:
        """Raises ModelFilesError."""
        self._threads = threads
        try:
            self._mistral = MistralTokenizer.from_file(str(file), mode=ValidationMode.test)
        except Exception as error:  # the library raises whatever its file readers raise
            raise ModelFilesError(file, f"not a tokenizer of mistral-common: {error}") from error
        instruct = self._mistral.instruct_tokenizer
        self._encoder = MistralEncoder(instruct.tokenizer)
        self.encoding = CachedEncoding(self._encoder, Cutter(safe_rules(self._encoder)), threads)
        instruct.tokenizer = cast(Tokenizer, _CachedTokenizer(instruct.tokenizer, self.encoding))

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
        if prompt.template is not None or prompt.variables.keys() - {"reasoning_effort", "enable_thinking"}:
            raise WithoutTokensError("template_refused")
        try:
            return Encoded(await self._threads.within_budget(partial(self._ids, prompt), prompt.characters))
        except LateError as reason:
            raise WithoutTokensError(str(reason)) from None
        except UnknownPartError:
            raise WithoutTokensError("not_text") from None
        except (MistralCommonException, ValueError, TypeError, KeyError):
            raise WithoutTokensError("template_refused") from None

    async def text(self, text: str, add_special_tokens: bool) -> Encoded:
        """Raises WithoutTokensError."""
        try:
            encoded = await self.encoding.encode(text)
        except UnicodeEncodeError:
            raise WithoutTokensError("not_unicode") from None
        if not add_special_tokens:
            return encoded
        tokens = np.concatenate([self._encoder.before, encoded.tokens])
        return Encoded(tokens, encoded.unseen_characters, encoded.late)

    def _ids(self, prompt: ChatPrompt) -> TokenIds:
        request: Any = ChatCompletionRequest.from_openai(
            messages=_messages(prompt.messages),
            tools=prompt.tools,
            continue_final_message=prompt.continue_final_message,
        )
        return np.array(self._mistral.encode_chat_completion(request).tokens, dtype=np.uint32)


class _CachedTokenizer:
    """A tokenizer of mistral-common that encodes long texts by way of the token cache."""

    def __init__(self, tokenizer: Tokenizer, encoding: CachedEncoding) -> None:
        self._tokenizer = tokenizer
        self._encoding = encoding

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode(self, s: str, bos: bool, eos: bool) -> list[int]:
        """As the library's own."""
        ids: list[int] = self._encoding.encode_now(s).tolist()
        return [self._tokenizer.bos_id] * bos + ids + [self._tokenizer.eos_id] * eos


def _messages(messages: list[Message]) -> list[TemplateMessage]:
    """The messages in OpenAI's form, with the short call ids that vLLM gives Mistral models."""
    converted = conversation(messages, parts=False)
    for message in converted:
        for call in message.get("tool_calls") or ():
            call["id"] = str(call.get("id", ""))[-_CALL_ID_CHARACTERS:]
        if "tool_call_id" in message:
            message["tool_call_id"] = str(message["tool_call_id"])[-_CALL_ID_CHARACTERS:]
        for key in ("reasoning", "reasoning_content", "thinking"):
            message.pop(key, None)
    return converted
