"""From a request to what it asks to be computed: API, model, token ids.

The path of a prompt: which API -> typed body -> chat template -> token ids. Nothing that a client sends makes it fail:
what cannot be understood is routed without tokens, and counted.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter
from typing import TypeAlias

import msgspec
import numpy as np
import structlog
from prometheus_client import CollectorRegistry

from epp.prompts.asked import AnyPrompt, Asked, ChatPrompt, TextPrompt, TokensPrompt
from epp.prompts.chat_template import RenderError
from epp.prompts.conversation import UnknownPartError, conversation
from epp.prompts.metrics import PromptMetrics
from epp.prompts.namespace import namespace
from epp.prompts.openai import read_chat, read_completions
from epp.prompts.prompt import EMPTY_TOKENS, Api, Prompt, Request, TokenSource
from epp.prompts.tokenizer import ModelFiles, TokenIds, TokenizerFilesError, load_model_files
from epp.settings import Settings, SettingsError

Body: TypeAlias = bytes | bytearray | memoryview

_INLINE_CHARACTERS = 2048
"""A text up to this long takes well under a millisecond and is encoded on the event loop."""

_PATHS: dict[str, tuple[Api, Callable[[Body], Asked]]] = {
    "/chat/completions": (Api.CHAT, read_chat),
    "/completions": (Api.COMPLETIONS, read_completions),
}

_log = structlog.get_logger(__name__)


class WithoutTokensError(Exception):
    """A request has no token ids; the text is the reason, one of a fixed few words."""


@dataclass(frozen=True)
class PromptsStatus:
    """How requests become token ids; a section of /status."""

    tokenizer: str
    """Where the tokenizer comes from; empty: none, requests are routed by load and text alone."""
    chat_template: bool
    read: dict[str, int] = field(default_factory=dict)
    """Requests by where their token ids came from."""
    without_tokens: dict[str, int] = field(default_factory=dict)
    """Requests without token ids, by reason."""


class PromptReader:
    """Understands requests. One per process; call `close` at the end."""

    def __init__(self, files: ModelFiles | None, metrics: PromptMetrics, *, origin: str = "") -> None:
        self._files = files
        self._metrics = metrics
        self._origin = origin
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenizer")
        self._read: Counter[str] = Counter()
        self._without: Counter[str] = Counter()

    @classmethod
    def from_settings(cls, settings: Settings, registry: CollectorRegistry) -> "PromptReader":
        """The reader that the settings describe. Raises SettingsError for a tokenizer that cannot be used."""
        metrics = PromptMetrics(registry)
        if settings.tokenizer_path is None:
            if settings.chat_template is not None:
                raise SettingsError("EPP_CHAT_TEMPLATE: expected only together with EPP_TOKENIZER_PATH")
            _log.warning("no tokenizer: requests are routed without token ids", setting="EPP_TOKENIZER_PATH")
            return cls(None, metrics)
        try:
            files = load_model_files(settings.tokenizer_path, settings.chat_template)
        except TokenizerFilesError as error:
            of_template = str(error).startswith(str(settings.chat_template))
            raise SettingsError(f"EPP_{'CHAT_TEMPLATE' if of_template else 'TOKENIZER_PATH'}: {error}") from None
        if files.template is None:
            _log.warning("no chat template: chat requests are routed without token ids", setting="EPP_CHAT_TEMPLATE")
        return cls(files, metrics, origin=str(settings.tokenizer_path))

    async def read(self, *, path: str, content_type: str, body: Body, request_id: str) -> Request:
        """What the request asks for; never raises for anything that a client can send."""
        start = perf_counter()
        api, asked = self._understand(path, content_type, body)
        tokens, source = EMPTY_TOKENS, TokenSource.NONE
        if asked.prompts:
            try:
                tokens, source = await self._tokens(asked.prompts[0])
            except WithoutTokensError as reason:
                self._say_without(str(reason))
        self._metrics.read(api, source, len(tokens), perf_counter() - start)
        self._read[source.value] += 1
        return Request(
            id=request_id,
            api=api,
            model=asked.model,
            prompt=Prompt(tokens=tokens, namespace=namespace(salt=asked.cache_salt), source=source),
            stream=asked.stream,
            max_output_tokens=asked.max_output_tokens,
            size=len(body),
        )

    def status(self) -> PromptsStatus:
        """What became of the requests so far."""
        return PromptsStatus(
            tokenizer=self._origin,
            chat_template=self._files is not None and self._files.template is not None,
            read=dict(self._read),
            without_tokens=dict(self._without),
        )

    def close(self) -> None:
        """Stop the threads; what they still encode is dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _understand(self, path: str, content_type: str, body: Body) -> tuple[Api, Asked]:
        known = _api(path)
        if known is None:
            self._say_without("unknown_path")
            return Api.UNKNOWN, Asked()
        if content_type and "json" not in content_type.lower():
            self._say_without("not_json")
            return Api.UNKNOWN, Asked()
        api, read = known
        try:
            return api, read(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self._say_without("unreadable_body")
            return Api.UNKNOWN, Asked()

    async def _tokens(self, prompt: AnyPrompt) -> tuple[TokenIds, TokenSource]:
        """Raises WithoutTokensError."""
        if isinstance(prompt, TokensPrompt):
            return _given_tokens(prompt), TokenSource.REQUEST
        if self._files is None:
            raise WithoutTokensError("no_tokenizer")
        text = prompt.text if isinstance(prompt, TextPrompt) else self._render(prompt, self._files)
        return await self._encode(text, prompt.add_special_tokens, self._files), TokenSource.TOKENIZER

    def _render(self, prompt: ChatPrompt, files: ModelFiles) -> str:
        if files.template is None:
            raise WithoutTokensError("no_chat_template")
        if prompt.template is not None:
            raise WithoutTokensError("template_in_request")
        try:
            return files.template.render(
                conversation(prompt.messages, parts=files.template.reads_parts),
                tools=prompt.tools,
                documents=prompt.documents,
                variables=prompt.variables,
                add_generation_prompt=prompt.add_generation_prompt,
                continue_final_message=prompt.continue_final_message,
            )
        except UnknownPartError:
            raise WithoutTokensError("not_text") from None
        except (RenderError, RecursionError):
            raise WithoutTokensError("template_refused") from None

    async def _encode(self, text: str, add_special_tokens: bool, files: ModelFiles) -> TokenIds:
        def encode() -> TokenIds:
            return files.tokenizer.encode(text, add_special_tokens=add_special_tokens)

        try:
            if len(text) <= _INLINE_CHARACTERS:
                return encode()
            return await asyncio.get_running_loop().run_in_executor(self._threads, encode)
        except UnicodeEncodeError:
            raise WithoutTokensError("not_unicode") from None

    def _say_without(self, reason: str) -> None:
        self._without[reason] += 1
        self._metrics.without_tokens(reason)


def _api(path: str) -> tuple[Api, Callable[[Body], Asked]] | None:
    plain = path.partition("?")[0].rstrip("/")
    return next((known for suffix, known in _PATHS.items() if plain.endswith(suffix)), None)


def _given_tokens(prompt: TokensPrompt) -> TokenIds:
    try:
        return np.array(prompt.ids, dtype=np.uint32)
    except (OverflowError, TypeError, ValueError):
        raise WithoutTokensError("bad_token_ids") from None
