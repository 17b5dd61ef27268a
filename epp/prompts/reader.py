"""From a request to what it asks to be computed: API, model, token ids.

The path of a prompt: which API -> typed body -> chat template -> token ids. Nothing that a client sends makes it fail:
what cannot be understood is routed without tokens, and counted.
"""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
from prometheus_client import CollectorRegistry

from epp.prompts.apis import NotUnderstoodError, Understood, understand
from epp.prompts.approximate import approximate_tokens, text_namespace
from epp.prompts.asked import AnyPrompt, Asked, Body, ChatPrompt, StandInPrompt, TokensPrompt
from epp.prompts.chunk_cache import ChunkCache
from epp.prompts.common import CHARACTERS_PER_TOKEN
from epp.prompts.encoders import Shared
from epp.prompts.encoding import Encoded, EncodingLimits, EncodingThreads
from epp.prompts.from_settings import models_from_settings
from epp.prompts.large import LargeBodies, is_large
from epp.prompts.metrics import EncodingMetrics, PromptMetrics
from epp.prompts.model import Model, WithoutTokensError
from epp.prompts.models import Models, ServedModel
from epp.prompts.namespace import namespace
from epp.prompts.prompt import NO_PROMPT, Api, Prompt, Request, TokenSource
from epp.prompts.render_service import RenderService, RenderServiceLimits
from epp.prompts.side_process import SideProcess
from epp.settings import Settings, SettingsError

_ASKED_ELSEWHERE = frozenset(
    {"no_tokenizer", "no_chat_template", "template_in_request", "not_text", "media", "too_large"}
)
"""Why there are no tokens, where the engine's render service can do better."""


_CACHE_OFF = "the token cache is off: a cut changed the tokens; every text is encoded whole"


@dataclass(frozen=True)
class ModelStatus:
    """How requests for one model become token ids."""

    names: tuple[str, ...]
    """Names in requests; none: every name."""
    origin: str
    """Where the tokenizer comes from."""
    chat_template: bool
    """Whether chat requests are rendered as the engine does it."""
    token_cache_rules: tuple[str, ...]
    """Places at which texts may be cut, so that an earlier text's tokens are used again; none: every text is encoded
    whole."""
    problem: str
    """Why there is no tokenizer yet, what is wrong with files that changed since, or why the token cache is off."""


@dataclass(frozen=True)
class PromptsStatus:
    """How requests become token ids; a section of /status."""

    models: tuple[ModelStatus, ...]
    """None: there is no tokenizer, and prefixes are compared as text."""
    token_cache_bytes: int = 0
    token_cache_limit: int = 0
    read: dict[str, int] = field(default_factory=dict)
    """Requests by where their token ids came from."""
    without_tokens: dict[str, int] = field(default_factory=dict)
    """Requests without all of their token ids, by reason."""
    render_service: bool = False
    """Whether engines are asked for what cannot be done here."""


class PromptReader:
    """Understands requests. One per process; call `close` at the end."""

    def __init__(
        self,
        models: Models,
        threads: EncodingThreads,
        process: SideProcess,
        service: RenderService | None,
        metrics: PromptMetrics,
        inline_bytes: int,
    ) -> None:
        self.models = models
        self.rewrite: Callable[[str], str] = str
        """The model that shall serve requests for a name."""
        self._threads = threads
        self._process = process
        self._inline_bytes = inline_bytes
        self._service = service
        self._metrics = metrics
        self._read: Counter[str] = Counter()
        self._without: Counter[str] = Counter()

    @classmethod
    def from_settings(
        cls, settings: Settings, registry: CollectorRegistry, workers: Callable[[], Sequence[str]] = tuple
    ) -> "PromptReader":
        """The reader that the settings describe; `workers()` are the base URLs to ask for EPP_RENDER_URL=pool.

        Raises SettingsError for a tokenizer that cannot be used.
        """
        cache = ChunkCache(settings.token_cache_bytes)
        encoding_metrics = EncodingMetrics(registry)
        encoding_metrics.cache(lambda: cache.bytes)
        threads = EncodingThreads(_encoding_limits(settings), cache, encoding_metrics)
        process = SideProcess(settings.render_budget_ms / 1000)
        models = models_from_settings(settings, _shared(settings, threads, process))
        service, metrics = _render_service(settings, workers, process), PromptMetrics(registry)
        return cls(models, threads, process, service, metrics, settings.render_inline_bytes)

    async def read(self, *, path: str, content_type: str, body: Body, request_id: str, tokens: bool = True) -> Request:
        """What the request asks for; never raises for anything that a client can send.

        Without `tokens` the prompt is left out, for picks that do not depend on it.
        """
        start = perf_counter()
        try:
            understood, serving = await self._understand(path, content_type, body, tokens=tokens)
        except NotUnderstoodError as reason:
            self._say_without(str(reason))
            understood, serving = Understood(Api.UNKNOWN, Asked()), ""
            problem = reason.problem
        else:
            problem = ""
        asked = understood.asked
        if tokens:
            prompt = await self._prompt(understood, body, serving)
        else:
            prompt = NO_PROMPT
            self._say_without("not_needed")
        self._metrics.read(understood.api, prompt.source, len(prompt.tokens), perf_counter() - start)
        self._read[prompt.source] += 1
        return Request(
            id=request_id,
            api=understood.api,
            model=asked.model,
            rewritten=serving if serving != asked.model else "",
            prompt=prompt,
            media_items=asked.media_items,
            stream=asked.stream,
            max_output_tokens=asked.max_output_tokens,
            expected_output_tokens=asked.expected_output_tokens,
            session=asked.session,
            priority=asked.priority,
            problem=problem,
            size=len(body),
        )

    def start(self) -> None:
        """Notice from now on when a model's files change; get ready for large bodies."""
        self.models.watch()
        self._process.start()

    def status(self) -> PromptsStatus:
        """What became of the requests so far."""
        cache = self._threads.cache
        return PromptsStatus(
            models=tuple(_status(one) for one in self.models.served),
            token_cache_bytes=cache.bytes,
            token_cache_limit=cache.limit,
            read=dict(self._read),
            without_tokens=dict(self._without),
            render_service=self._service is not None,
        )

    def close(self) -> None:
        """Stop the threads and the process; what they still work on is dropped."""
        self.models.close()
        self._threads.close()
        self._process.close()

    async def stop(self) -> None:
        """Close, and end the connections to the render service too."""
        self.close()
        if self._service is not None:
            await self._service.stop()

    async def _understand(self, path: str, content_type: str, body: Body, *, tokens: bool) -> tuple[Understood, str]:
        """What the body asks for, and the model that shall serve it. Raises NotUnderstoodError."""
        if is_large(body, self._inline_bytes):
            beside = LargeBodies(self.models, self.rewrite, self._process)
            return await beside.understand(path, content_type, body, tokens=tokens)
        understood = understand(path, content_type, body)
        return understood, self.rewrite(understood.asked.model)

    async def _prompt(self, understood: Understood, body: Body, model: str) -> Prompt:
        """The first prompt of the body, as `model` sees it; further ones of a batch only count as work."""
        asked = understood.asked
        place = namespace(asked.adapter or self.models.adapter(model), asked.cache_salt)
        first, more = asked.prompt, asked.further_tokens
        if first is None:
            return Prompt(namespace=place)
        encoded, source, missing = await self._encoded(first, model)
        if missing in _ASKED_ELSEWHERE and self._service is not None:
            try:
                rendered = await self._service.tokens(understood.api, body)
            except WithoutTokensError as reason:
                self._say_without(str(reason))
            else:
                return Prompt(
                    tokens=rendered.tokens,
                    namespace=place,
                    media=rendered.media,
                    source=TokenSource.RENDER,
                    unseen_tokens=more,
                )
        if missing:
            self._say_without(missing)
        if encoded is None or _is_better_as_text(encoded):
            tokens = approximate_tokens(first)
            return Prompt(tokens=tokens, namespace=text_namespace(place), source=TokenSource.TEXT, unseen_tokens=more)
        unseen = more + encoded.unseen_characters // CHARACTERS_PER_TOKEN
        return Prompt(tokens=encoded.tokens, namespace=place, source=source, unseen_tokens=unseen)

    async def _encoded(self, prompt: AnyPrompt, model: str) -> tuple[Encoded | None, TokenSource, str]:
        """The ids, where they came from, and why there are none or not all."""
        try:
            encoded, source = await _encode(prompt, self.models.find(model))
        except WithoutTokensError as reason:
            return None, TokenSource.NONE, str(reason)
        return encoded, source, encoded.late

    def _say_without(self, reason: str) -> None:
        self._without[reason] += 1
        self._metrics.without_tokens(reason)


async def _encode(prompt: AnyPrompt, model: Model | None) -> tuple[Encoded, TokenSource]:
    """Raises WithoutTokensError."""
    if isinstance(prompt, TokensPrompt):
        try:
            return Encoded(np.array(prompt.ids, dtype=np.uint32)), TokenSource.REQUEST
        except (OverflowError, TypeError, ValueError):
            raise WithoutTokensError("bad_token_ids") from None
    if isinstance(prompt, StandInPrompt):
        raise WithoutTokensError(prompt.reason)
    if model is None:
        raise WithoutTokensError("no_tokenizer")
    if isinstance(prompt, ChatPrompt):
        return await model.chat(prompt), model.source
    return await model.text(prompt.text, prompt.add_special_tokens), model.source


def _is_better_as_text(encoded: Encoded) -> bool:
    """Whether the text says more of a prompt than its ids: where none came in time, or media come early in it."""
    if encoded.late == "media":
        return len(encoded.tokens) * CHARACTERS_PER_TOKEN < encoded.unseen_characters
    return bool(encoded.late) and not len(encoded.tokens)


def _shared(settings: Settings, threads: EncodingThreads, process: SideProcess) -> Shared:
    return Shared(threads, process, settings.trust_request_chat_template, settings.harmony_date)


def _status(one: ServedModel) -> ModelStatus:
    model, names = one.model, tuple(sorted(one.names))
    if model is None:
        return ModelStatus(names, one.origin, chat_template=False, token_cache_rules=(), problem=one.problem)
    problem = one.problem or (_CACHE_OFF if model.cache_differed else "")
    return ModelStatus(names, one.origin, model.has_template, model.cache_rules, problem)


def _render_service(
    settings: Settings, workers: Callable[[], Sequence[str]], process: SideProcess
) -> RenderService | None:
    if settings.render_url is None:
        return None
    urls = [url.strip().rstrip("/") for url in settings.render_url.split(",")]
    if urls != ["pool"] and not all(url.startswith(("http://", "https://")) for url in urls):
        raise SettingsError(f"EPP_RENDER_URL={settings.render_url!r}: expected http:// URLs, or pool")
    limits = RenderServiceLimits(
        budget_seconds=settings.render_service_budget_ms / 1000, hedge_seconds=settings.render_hedge_ms / 1000
    )
    return RenderService(workers if urls == ["pool"] else lambda: urls, limits, process)


def _encoding_limits(settings: Settings) -> EncodingLimits:
    return EncodingLimits(
        threads=settings.tokenizer_threads or min(max((os.cpu_count() or 1) - 1, 1), 4),
        budget_seconds=settings.tokenize_budget_ms / 1000,
        queued_characters=settings.tokenize_queue_bytes,
        check_share=settings.token_check_share,
    )
